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

// program is a program and how to run it without effect.
type program struct {
	name     string
	command  []string
	style    style
	harmless []string // arguments with which it exits soon; empty and pflags: it has no gates
}

// run returns the output. The exit status is ignored because it differs between the programs.
func (p program) run(ctx context.Context, args ...string) string {
	out, _ := exec.CommandContext(ctx, p.command[0], append(slices.Clone(p.command[1:]), args...)...).CombinedOutput()
	return string(out)
}

// ask returns the table of all programs.
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
			return catalog.FlagTable{}, fmt.Errorf("feature gate %s: only %d of %d programs have it, and the table cannot represent that", name, knownBy[name], kubernetes)
		}
		table.Gates = append(table.Gates, catalog.Gate{Name: name, Locked: locked[name]})
	}
	return table, nil
}

// flags returns the flags on the help page and the candidates that the program accepts although they are hidden.
func (p program) flags(ctx context.Context, help string, names []string) ([]catalog.Flag, error) {
	known := map[string]catalog.Flag{}
	for _, f := range readHelp(help, p.style) {
		known[f.Name] = f
	}
	const few = 5
	if len(known) < few {
		return nil, fmt.Errorf("ask %s: the help has only %d flags: %s", p.name, len(known), help)
	}
	if p.style == urfave {
		names = nil // containerd has no hidden flags
	}
	for _, name := range names {
		if _, listed := known[name]; !listed {
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

// try runs the program with a flag whose value is not a boolean, and with --help, so that the program never starts.
func (p program) try(ctx context.Context, name string) (known, boolean bool) {
	out := p.run(ctx, "--"+name+"=slipway", "--help")
	return !unknownFlag.MatchString(out), notBool.MatchString(out)
}

var refusedGate = regexp.MustCompile(`unrecognized feature gate: (\w+)|cannot set feature gate (\w+) to (?:true|false)`)

// gates returns which of the names are gates, and adds the locked ones to locked. A program reports one error per run, so gates
// that are already in locked are not tried: a gate is locked in all programs of a release.
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
				return nil, fmt.Errorf("ask %s: it refuses the gate %s, which was not passed", p.name, name)
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
