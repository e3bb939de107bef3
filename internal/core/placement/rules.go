// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Problem is a rule that is meaningless or can never be satisfied. Invalid rules are reported and never ignored.
type Problem struct {
	Unit  string
	Field string // on, with, conflicts, global, pin, replaces
	Index int    // of the element in a list; -1: the whole field
	Msg   string
	Hint  string
}

func (p Problem) String() string {
	text := fmt.Sprintf("unit %s: %s: %s", p.Unit, p.Field, p.Msg)
	if p.Hint != "" {
		text += ": " + p.Hint
	}
	return text
}

// Check returns the problems of the units' rules. known are the names of the components. machines are the names of the
// machines; nil: they are not known yet.
func Check(units []Unit, known, machines []string) []Problem {
	c := checker{names: slices.Clone(known), units: map[string]Unit{}}
	for _, u := range units {
		c.names = append(c.names, u.Name)
		c.units[u.Name] = u
	}
	for _, u := range units {
		c.unit = u.Name
		c.alone(u)
		for i, name := range u.With {
			c.with(u, name, i)
		}
		for i, name := range u.Replaces {
			c.replaces(u, name, i)
		}
		if u.Pin != "" && machines != nil && !slices.Contains(machines, u.Pin) {
			c.say("pin", -1, fmt.Sprintf("there is no machine %q", u.Pin), "the machines are "+some(machines))
		}
	}
	return c.problems
}

type checker struct {
	unit     string // the unit that is checked
	names    []string
	units    map[string]Unit
	problems []Problem
}

func (c *checker) say(field string, index int, msg, hint string) {
	c.problems = append(c.problems, Problem{c.unit, field, index, msg, hint})
}

// alone checks what does not depend on other units.
func (c *checker) alone(u Unit) {
	for key, values := range u.On {
		if key == "" || len(values) == 0 {
			c.say("on", -1, fmt.Sprintf("label %q has no values", key), "write the suitable values: "+key+": [VALUE]")
		}
	}
	for i, pattern := range u.Conflicts {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			c.say("conflicts", i, fmt.Sprintf("%q is not a pattern", pattern), "use *, ? and [a-z] as in file names")
		}
	}
	if u.Global && u.Pin != "" {
		c.say("global", -1, "a unit for all machines cannot be pinned to one", "remove one of the two, or use on")
	}
	if u.Global && len(u.Replaces) > 0 {
		c.say("global", -1, "a unit for all machines leaves no machine to the units that it replaces", "use conflicts")
	}
}

func (c *checker) with(u Unit, name string, i int) {
	other, isUnit := c.units[name]
	switch {
	case name == u.Name:
		c.say("with", i, "it names the unit itself", "remove it")
	case !slices.Contains(c.names, name):
		c.say("with", i, fmt.Sprintf("there is no unit or component %q", name), "choose one of "+some(c.names))
	case repels(u, name, isUnit) || isUnit && repels(other, u.Name, true):
		c.say("with", i, "the two units conflict", "remove one of the rules")
	case reaches(name, u.Name, func(at string) []string { return c.units[at].With }):
		c.say("with", i, name+" depends on "+u.Name+" as well", "remove one of the rules")
	}
}

func (c *checker) replaces(u Unit, name string, i int) {
	switch other, isUnit := c.units[name]; {
	case name == u.Name:
		c.say("replaces", i, "it names the unit itself", "remove it")
	case !isUnit:
		c.say("replaces", i, fmt.Sprintf("there is no unit %q", name), "only units of the spec can be moved")
	case other.Global:
		c.say("replaces", i, name+" is for all machines: it cannot move", "use conflicts")
	}
}

func some(names []string) string {
	list := slices.Sorted(slices.Values(names))
	if len(list) > 12 {
		list = append(list[:12], "…")
	}
	return strings.Join(list, ", ")
}

// Suffix is what systemd and fleet append to the name of a unit.
const Suffix = ".service"

// Bare returns a name without the suffix.
func Bare(name string) string { return strings.TrimSuffix(name, Suffix) }

// Split returns the parts of a name: "db@main" is the instance main of db, and "db@" is a template without an instance.
func Split(name string) (prefix, instance string, template bool) {
	prefix, instance, at := strings.Cut(Bare(name), "@")
	return prefix, instance, at && instance == ""
}

// Expand replaces the specifiers in an option of the unit: %n is its name with ".service", %N without, %p the part before
// the "@", %i the part after it, and %% a percent sign.
func Expand(name, text string) (string, error) {
	prefix, instance, _ := Split(name)
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "%")
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		if after == "" {
			return "", errors.New("there is a percent sign at the end: write %% for a percent sign")
		}
		switch after[0] {
		case 'n':
			b.WriteString(Bare(name) + Suffix)
		case 'N':
			b.WriteString(Bare(name))
		case 'p':
			b.WriteString(prefix)
		case 'i':
			b.WriteString(instance)
		case '%':
			b.WriteByte('%')
		default:
			return "", fmt.Errorf("unknown specifier %%%c: use %%n, %%N, %%p, %%i, or %%%% for a percent sign", after[0])
		}
		text = after[1:]
	}
}

// Escape is the inverse of Expand: Expand turns the result into text again.
func Escape(text string) string { return strings.ReplaceAll(text, "%", "%%") }

func escapeAll(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = Escape(s)
	}
	return out
}

// Escaped returns the unit as a spec writes it: with every percent sign doubled.
func Escaped(u Unit) Unit {
	on, env := map[string][]string{}, map[string]string{}
	for k, values := range u.On {
		on[k] = escapeAll(values)
	}
	for k, v := range u.Env {
		env[k] = Escape(v)
	}
	u.On, u.Env, u.Exec, u.With, u.Conflicts, u.Replaces = on, env, escapeAll(u.Exec), escapeAll(u.With), escapeAll(u.Conflicts), escapeAll(u.Replaces)
	u.Directory, u.Pin = Escape(u.Directory), Escape(u.Pin)
	u.Ready.HTTP, u.Ready.TCP, u.Ready.File = Escape(u.Ready.HTTP), Escape(u.Ready.TCP), Escape(u.Ready.File)
	return u
}

// Resolve returns the unit with the specifiers in its rules replaced and the suffix of its name removed. Other options keep
// their specifiers. The problem, if any, has the field.
func Resolve(u Unit) (Unit, *Problem) {
	out := u
	out.Name, out.On, out.With, out.Conflicts, out.Replaces, out.Pin = Bare(u.Name), nil, nil, nil, nil, ""
	list := func(field string, in []string) (all []string, bad *Problem) {
		for i, text := range in {
			s, err := Expand(u.Name, text)
			if err != nil {
				return nil, &Problem{Unit: u.Name, Field: field, Index: i, Msg: err.Error()}
			}
			all = append(all, Bare(s))
		}
		return all, nil
	}
	var bad *Problem
	if out.With, bad = list("with", u.With); bad != nil {
		return out, bad
	}
	if out.Conflicts, bad = list("conflicts", u.Conflicts); bad != nil {
		return out, bad
	}
	if out.Replaces, bad = list("replaces", u.Replaces); bad != nil {
		return out, bad
	}
	for key, values := range u.On {
		if out.On == nil {
			out.On = map[string][]string{}
		}
		out.On[key] = []string{}
		for i, text := range values {
			s, err := Expand(u.Name, text)
			if err != nil {
				return out, &Problem{Unit: u.Name, Field: "on." + key, Index: i, Msg: err.Error()}
			}
			out.On[key] = append(out.On[key], s)
		}
	}
	pin, err := Expand(u.Name, u.Pin)
	if err != nil {
		return out, &Problem{Unit: u.Name, Field: "pin", Index: -1, Msg: err.Error()}
	}
	out.Pin = pin
	return out, nil
}
