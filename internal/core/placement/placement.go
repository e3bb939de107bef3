// SPDX-License-Identifier: Apache-2.0

// Package placement decides which unit runs on which machine, by the rules that each unit states: labels, company, conflicts, a
// machine by name. It is a pure function of what it is given: the same units, machines and previous places always give the same
// answer, in whatever order they come. It starts and stops nothing, and what is not placed is never silent: it has a reason.
//
// Read [Unit] and [Decide] first.
//
//	Unit{Name: "web", On: {"tier": ["gold"]}} + Machine{Name: "m1", Labels: {"tier": "gold"}}  →  {"web": ["m1"]}
package placement

import (
	"maps"
	"slices"
)

// Unit is something that runs on machines, and the rules for where. All rules hold together.
type Unit struct {
	// Name without ".service". "db@main" is the instance main of the template "db@".
	Name string
	// On: the machine has, for each key, one of the values as its label.
	On map[string][]string
	// With: the machine has all these units or components.
	With []string
	// Conflicts are patterns (path.Match) of units and components that are never on the same machine. It is enough that one of two
	// says so. A unit never conflicts with itself. A pattern that begins with a wildcard means units only: some component is on
	// every machine.
	Conflicts []string
	// Global: on every machine that the rules allow, not on one. Others come first: it keeps off where it conflicts.
	Global bool
	// Pin is the only machine that will do.
	Pin string
	// Replaces names units that make room: this one takes the machine of the first that runs, and those move elsewhere.
	// Units that replace each other in a circle do not.
	Replaces []string
}

// Machine is what a unit may run on.
type Machine struct {
	Name   string
	Labels map[string]string
	Runs   []string // components, which nobody places
	// Silent: nobody knows how it is. It keeps what it has and gets nothing new.
	Silent bool
	// Guest: it takes global units only. Whoever decides for it does not know the others like it.
	Guest bool
}

// Decision is where everything runs.
type Decision struct {
	// On has an entry for each unit that runs: its machines by name.
	On map[string][]string
	// Unplaced are the units that run nowhere, by name.
	Unplaced []Unplaced
}

// Unplaced is a unit that runs nowhere, and why.
type Unplaced struct{ Unit, Reason string }

// Decide places the units. What before says stays where it is as long as the rules allow; machines that come attract nothing. A
// unit that is new goes to the machine with the fewest units, the first by name among equals. The units must have no [Problem].
func Decide(units []Unit, machines []Machine, before map[string][]string) Decision {
	was := maps.Clone(before)
	if was == nil {
		was = map[string][]string{}
	}
	for range len(units) + 1 { // each round but the last has settled one replacement for good
		f := newField(units, machines)
		f.keep(was)
		if !f.place(was) {
			return f.decision()
		}
	}
	f := newField(units, machines)
	f.keep(was)
	f.settled = true
	f.place(was)
	return f.decision()
}

// field is the machines while they are filled.
type field struct {
	units    map[string]Unit
	order    []Unit // company and the replaced first, then by name
	machines []Machine
	on       map[string][]string        // unit → machines
	has      map[string]map[string]bool // machine → units and components
	load     map[string]int             // machine → units that are not global
	reasons  map[string]string          // of what was not placed
	settled  bool                       // no more replacements
}

func newField(units []Unit, machines []Machine) *field {
	f := &field{
		units: map[string]Unit{}, on: map[string][]string{}, has: map[string]map[string]bool{}, load: map[string]int{}, reasons: map[string]string{},
		machines: slices.SortedFunc(slices.Values(machines), func(a, b Machine) int { return compare(a.Name, b.Name) }),
	}
	for _, u := range units {
		f.units[u.Name] = u
	}
	said := maps.Clone(f.units)
	for name, u := range said {
		u.Replaces = slices.DeleteFunc(slices.Clone(u.Replaces), func(r string) bool { return reaches(r, name, func(at string) []string { return said[at].Replaces }) })
		f.units[name] = u
	}
	f.order = inOrder(f.units)
	for _, m := range f.machines {
		f.has[m.Name] = map[string]bool{}
		for _, c := range m.Runs {
			f.has[m.Name][c] = true
		}
	}
	return f
}

// keep leaves the units where they were, as far as that is allowed.
func (f *field) keep(before map[string][]string) {
	for _, u := range f.order {
		if u.Global {
			continue
		}
		for _, name := range slices.Sorted(slices.Values(before[u.Name])) {
			if m, ok := f.machine(name); ok && f.objection(u, m) == "" {
				f.put(u, m)
				break // it runs once
			}
		}
	}
}

// place finds machines for the rest. It reports whether a unit has made room for another: then all has to be looked at again,
// with was as it is now.
func (f *field) place(was map[string][]string) (again bool) {
	for _, u := range f.order {
		if u.Global || len(f.on[u.Name]) > 0 {
			continue
		}
		replaced := f.standing(u.Replaces)
		if len(replaced) > 0 && !f.settled {
			if f.replace(u, replaced, was) {
				return true
			}
			continue
		}
		best := f.choose(u, "")
		if m, ok := f.machine(best); ok {
			f.put(u, m)
		}
	}
	for _, u := range f.order {
		if !u.Global {
			continue
		}
		for _, m := range f.machines {
			if f.has[m.Name][u.Name] || f.objection(u, m) == "" {
				f.put(u, m)
			}
		}
	}
	for _, u := range f.order {
		if _, said := f.reasons[u.Name]; !said && len(f.on[u.Name]) == 0 {
			f.reasons[u.Name] = f.reason(u)
		}
	}
	return false
}

// choose is the machine with the fewest units that will have this one; never not.
func (f *field) choose(u Unit, not string) string {
	best := ""
	for _, m := range f.machines {
		if m.Name == not || m.Silent || m.Guest || f.objection(u, m) != "" {
			continue
		}
		if best == "" || f.load[m.Name] < f.load[best] {
			best = m.Name
		}
	}
	return best
}

func (f *field) put(u Unit, m Machine) {
	if !slices.Contains(f.on[u.Name], m.Name) {
		f.on[u.Name] = append(f.on[u.Name], m.Name)
	}
	f.has[m.Name][u.Name] = true
	if u.Global {
		return
	}
	f.load[m.Name]++
	for _, w := range u.With { // a global unit that is company must not be kept off by what comes later
		if g, ok := f.units[w]; ok && g.Global {
			f.put(g, m)
		}
	}
}

func (f *field) take(u Unit, machine string) {
	f.on[u.Name] = slices.DeleteFunc(f.on[u.Name], func(m string) bool { return m == machine })
	delete(f.has[machine], u.Name)
	f.load[machine]--
}

func (f *field) machine(name string) (Machine, bool) {
	i := slices.IndexFunc(f.machines, func(m Machine) bool { return m.Name == name })
	if i < 0 {
		return Machine{}, false
	}
	return f.machines[i], true
}

func (f *field) decision() Decision {
	d := Decision{On: map[string][]string{}}
	for name, on := range f.on {
		if len(on) > 0 {
			slices.Sort(on)
			d.On[name] = on
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.reasons)) {
		d.Unplaced = append(d.Unplaced, Unplaced{name, f.reasons[name]})
	}
	return d
}
