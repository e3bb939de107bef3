// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ParseFlags reads a table of flags: "release VERSION", then "program NAME"
// with a flag per line, then "gates" with a gate per line. Names must ascend,
// which also forbids one twice.
func ParseFlags(text string) (FlagTable, error) {
	p := flagParser{table: FlagTable{Programs: map[string][]Flag{}}}
	for n, line := range strings.Split(text, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := p.line(strings.Split(line, " ")); err != nil {
			return FlagTable{}, fmt.Errorf("parse flags: line %d: %w", n+1, err)
		}
	}
	if p.table.Kubernetes == "" {
		return FlagTable{}, fmt.Errorf("parse flags: no release")
	}
	return p.table, nil
}

type flagParser struct {
	table   FlagTable
	program string
	gates   bool
	last    string
}

func (p *flagParser) line(words []string) error {
	switch {
	case words[0] == "release" && len(words) == 2 && p.table.Kubernetes == "":
		p.table.Kubernetes = words[1]
		return nil
	case words[0] == "program" && len(words) == 2 && !p.gates:
		if p.table.Programs[words[1]] != nil {
			return fmt.Errorf("program %s again", words[1])
		}
		p.program, p.last = words[1], ""
		p.table.Programs[p.program] = []Flag{}
		return nil
	case words[0] == "gates" && len(words) == 1 && !p.gates:
		p.gates, p.last = true, ""
		return nil
	case words[0] <= p.last:
		return fmt.Errorf("%s after %s", words[0], p.last)
	}
	p.last = words[0]
	switch {
	case p.gates:
		return p.gate(words)
	case p.program != "":
		return p.flag(words)
	}
	return fmt.Errorf("%s before any program", words[0])
}

func (p *flagParser) flag(words []string) error {
	f := Flag{Name: words[0]}
	for _, w := range words[1:] {
		switch w {
		case string(BoolFlag), string(OneFlag), string(ManyFlag):
			f.Kind = FlagKind(w)
		case string(IntValue), string(DurationValue):
			f.Value = FlagValue(w)
		case "deprecated":
			f.Deprecated = true
		case "exits":
			f.Exits = true
		default:
			return fmt.Errorf("flag %s: unknown word %q", f.Name, w)
		}
	}
	p.table.Programs[p.program] = append(p.table.Programs[p.program], f)
	return nil
}

func (p *flagParser) gate(words []string) error {
	g := Gate{Name: words[0]}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		switch {
		case key == "locked" && (value == "true" || value == "false"):
			g.Locked = value
		default:
			return fmt.Errorf("gate %s: unknown word %q", g.Name, w)
		}
	}
	p.table.Gates = append(p.table.Gates, g)
	return nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
