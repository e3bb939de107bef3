// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/catalog"
)

// program is one that can be asked.
type program struct {
	name     string
	command  []string
	style    style
	harmless []string // arguments with which it ends soon; empty and pflags: it has no gates
}

// run is what it prints. The text tells more than the status, which differs from program to program.
func (p program) run(ctx context.Context, args ...string) string {
	out, _ := exec.CommandContext(ctx, p.command[0], append(slices.Clone(p.command[1:]), args...)...).CombinedOutput()
	return string(out)
}

// ask builds the table of all programs.
func ask(ctx context.Context, all []program, c candidates) (catalog.FlagTable, error) {
	table := catalog.FlagTable{Programs: map[string][]catalog.Flag{}}
	knownBy, locked := map[string]int{}, map[string]string{}
	kubernetes := 0
	for _, p := range all {
		help := p.run(ctx, "--help")
		flags, err := p.flags(ctx, help, c.flags)
		if err != nil {
			return catalog.FlagTable{}, err
		}
		table.Programs[p.name] = flags
		if p.style != pflags {
			continue
		}
		kubernetes++
		table.Kubernetes = strings.TrimPrefix(strings.TrimSpace(p.run(ctx, "--version")), "Kubernetes v")
		names := slices.Concat(c.gates, readGates(help))
		slices.Sort(names)
		gates, err := p.gates(ctx, slices.Compact(names), locked)
		if err != nil {
			return catalog.FlagTable{}, err
		}
		for _, g := range gates {
			knownBy[g.Name]++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(knownBy)) {
		if knownBy[name] < kubernetes {
			return catalog.FlagTable{}, fmt.Errorf("feature gate %s: only %d of %d programs know it, and the table cannot say which", name, knownBy[name], kubernetes)
		}
		table.Gates = append(table.Gates, catalog.Gate{Name: name, Locked: locked[name]})
	}
	return table, nil
}

// flags are those of the help page and the candidates that it knows without saying so.
func (p program) flags(ctx context.Context, help string, names []string) ([]catalog.Flag, error) {
	known := map[string]catalog.Flag{}
	for _, f := range readHelp(help, p.style) {
		known[f.Name] = f
	}
	const few = 5
	if len(known) < few {
		return nil, fmt.Errorf("ask %s: its help names %d flags: %s", p.name, len(known), help)
	}
	if p.style == urfave {
		names = nil // containerd hides none
	}
	for _, name := range names {
		if _, told := known[name]; !told {
			known[name] = catalog.Flag{Name: name, Deprecated: name != "config-file" && name != "version", Exits: slices.Contains(exits, name)}
		}
	}
	out := make([]catalog.Flag, 0, len(known))
	for _, name := range slices.Sorted(maps.Keys(known)) {
		f := known[name]
		if f.Kind == catalog.AnyFlag || slices.Contains(names, name) {
			isKnown, isBool := p.try(ctx, name)
			if !isKnown {
				continue
			}
			if isBool {
				f.Kind = catalog.BoolFlag
			}
		}
		out = append(out, f)
	}
	return out, nil
}

var (
	unknownFlag = regexp.MustCompile(`unknown flag: |provided but not defined`)
	notBool     = regexp.MustCompile(`ParseBool|invalid boolean value`)
)

// try gives the program a flag with a value that no boolean has, and --help, so that it does not start in any case.
func (p program) try(ctx context.Context, name string) (known, boolean bool) {
	out := p.run(ctx, "--"+name+"=slipway", "--help")
	return !unknownFlag.MatchString(out), notBool.MatchString(out)
}

var refusedGate = regexp.MustCompile(`unrecognized feature gate: (\w+)|cannot set feature gate (\w+) to (?:true|false)`)

// gates finds out which names are gates and which are locked. A program tells one mistake at a time, so what is in locked
// already is believed: a gate is locked in all of a release.
func (p program) gates(ctx context.Context, names []string, locked map[string]string) ([]catalog.Gate, error) {
	known := map[string]bool{}
	for _, name := range names {
		known[name] = true
	}
	for value, other := range map[string]string{"true": "false", "false": "true"} {
		try := maps.Clone(known)
		maps.DeleteFunc(try, func(name string, _ bool) bool { return locked[name] == other })
		for {
			m := refusedGate.FindStringSubmatch(p.runGates(ctx, try, value))
			if m == nil {
				break
			}
			name := m[1] + m[2]
			if !try[name] {
				return nil, fmt.Errorf("ask %s: it refuses the gate %s, which it was not given", p.name, name)
			}
			delete(try, name)
			if m[1] != "" {
				delete(known, name)
			} else {
				locked[name] = other
			}
		}
	}
	var out []catalog.Gate
	for _, name := range slices.Sorted(maps.Keys(known)) {
		out = append(out, catalog.Gate{Name: name, Locked: locked[name]})
	}
	return out, nil
}

func (p program) runGates(ctx context.Context, names map[string]bool, value string) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		list = append(list, name+"="+value)
	}
	return p.run(ctx, append(slices.Clone(p.harmless), "--feature-gates="+strings.Join(list, ","))...)
}
