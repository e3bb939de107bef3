// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Problem is a rule that means nothing, or nothing that can be. No rule is ever dropped because it is not understood.
type Problem struct {
	Unit  string
	Field string // on, with, conflicts, global, pin, replaces
	Index int    // of the element of a list; -1: the whole field
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

// Check finds what is wrong with the rules. known are the components, and machines the machines' names; nil: any.
func Check(units []Unit, known, machines []string) []Problem {
	c := checker{names: slices.Clone(known)}
	globals := map[string]bool{}
	for _, u := range units {
		c.names = append(c.names, u.Name)
		globals[u.Name] = u.Global
	}
	all := map[string]Unit{}
	for _, u := range units {
		all[u.Name] = u
	}
	for _, u := range units {
		c.unit = u.Name
		c.alone(u)
		for i, w := range u.With {
			c.company(u, w, i, all)
		}
		for i, r := range u.Replaces {
			c.replaced(u, r, i, globals)
		}
		if u.Pin != "" && machines != nil && !slices.Contains(machines, u.Pin) {
			c.say("pin", -1, fmt.Sprintf("there is no machine %q", u.Pin), "the machines are "+some(machines))
		}
	}
	return c.problems
}

type checker struct {
	unit     string
	names    []string
	problems []Problem
}

func (c *checker) say(field string, index int, msg, hint string) {
	c.problems = append(c.problems, Problem{c.unit, field, index, msg, hint})
}

// alone is what can be seen from the unit itself.
func (c *checker) alone(u Unit) {
	for key, values := range u.On {
		if key == "" || len(values) == 0 {
			c.say("on", -1, fmt.Sprintf("label %q has no value", key), "write the values that will do: "+key+": [VALUE]")
		}
	}
	for i, pattern := range u.Conflicts {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			c.say("conflicts", i, fmt.Sprintf("%q is no pattern", pattern), "use *, ? and [a-z] as in file names")
		}
	}
	if u.Global && u.Pin != "" {
		c.say("global", -1, "a unit for all machines cannot be pinned to one", "leave one of them away, or use on")
	}
	if u.Global && len(u.Replaces) > 0 {
		c.say("global", -1, "a unit for all machines leaves those that it replaces no place", "use conflicts")
	}
}

func (c *checker) company(u Unit, name string, i int, all map[string]Unit) {
	switch {
	case name == u.Name:
		c.say("with", i, "it names the unit itself", "remove it")
	case !slices.Contains(c.names, name):
		c.say("with", i, fmt.Sprintf("there is no unit or component %q", name), "there are "+some(c.names))
	case u.repels(name, isUnit(all, name)) || isUnit(all, name) && all[name].repels(u.Name, true):
		c.say("with", i, "the two conflict: they cannot be together", "remove one of the rules")
	case reaches(name, u.Name, func(at string) []string { return all[at].With }):
		c.say("with", i, name+" wants to be with "+u.Name+" itself", "say it on one side only")
	}
}

func (c *checker) replaced(u Unit, name string, i int, globals map[string]bool) {
	switch global, ours := globals[name]; {
	case name == u.Name:
		c.say("replaces", i, "it names the unit itself", "remove it")
	case !ours:
		c.say("replaces", i, fmt.Sprintf("there is no unit %q", name), "only units of the spec can be moved")
	case global:
		c.say("replaces", i, name+" is for all machines: it cannot move", "use conflicts")
	}
}

func isUnit(all map[string]Unit, name string) bool {
	_, ok := all[name]
	return ok
}

func some(names []string) string {
	list := slices.Sorted(slices.Values(names))
	if len(list) > 12 {
		list = append(list[:12], "…")
	}
	return strings.Join(list, ", ")
}
