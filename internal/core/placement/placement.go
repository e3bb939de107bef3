// SPDX-License-Identifier: Apache-2.0

// Package placement decides which unit runs on which machine, by the rules that each unit states: labels, other units
// and components, conflicts, a pinned machine. It is a pure function: the same units, machines and previous placement
// always give the same decision, in whatever order they are listed. A unit that is not placed always has a reason.
//
// Read [Unit] and [Decide] first.
//
//	Unit{Name: "web", On: {"tier": ["gold"]}} + Machine{Name: "m1", Labels: {"tier": "gold"}}  →  {"web": ["m1"]}
package placement

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/api/cluster/v1alpha1"
)

// Unit is a unit of a spec. This package reads its name and its rules: On, With, Conflicts, Global, Pin and Replaces. All
// rules must hold together. Units that replace each other in a circle do not replace anything.
type Unit = v1alpha1.Unit

// Machine is what a unit can run on.
type Machine struct {
	Name   string
	Labels map[string]string
	Runs   []string // components, which are not placed by this package
	// Unlisted: the spec does not list the machine. It gets global units only, because its plan is made without knowledge of
	// the other unlisted machines.
	Unlisted bool
}

// Decision says which units run on which machines.
type Decision struct {
	// On has an entry for each unit that runs: its machines by name.
	On map[string][]string
	// Unplaced are the units that run nowhere, by name.
	Unplaced []Unplaced
}

// Unplaced is a unit that runs nowhere, and the reason.
type Unplaced struct{ Unit, Reason string }

// Decide places the units. A unit stays where it was before as long as the rules allow it; a new machine does not make units
// move. A new unit goes to the machine with the fewest units, among equals to the first by name. The units must not have
// problems, see [Check].
func Decide(units []Unit, machines []Machine, before map[string][]string) Decision {
	was := maps.Clone(before)
	if was == nil {
		was = map[string][]string{}
	}
	for range len(units) + 1 { // each round except the last makes one replacement final
		p := newPlacer(units, machines)
		p.keep(was)
		if !p.place(was) {
			return p.decision()
		}
	}
	p := newPlacer(units, machines)
	p.keep(was)
	p.settled = true
	p.place(was)
	return p.decision()
}

// placer is the state of one attempt while the machines are filled.
type placer struct {
	units    map[string]Unit
	order    []Unit // each after the units that it depends on or replaces, then by name
	machines []Machine
	on       map[string][]string        // unit → machines
	has      map[string]map[string]bool // machine → units and components
	load     map[string]int             // machine → number of units that are not global
	reasons  map[string]string          // of units that were not placed
	settled  bool                       // no more replacements
}

func newPlacer(units []Unit, machines []Machine) *placer {
	p := &placer{
		units: map[string]Unit{}, on: map[string][]string{}, has: map[string]map[string]bool{}, load: map[string]int{}, reasons: map[string]string{},
		machines: slices.SortedFunc(slices.Values(machines), func(a, b Machine) int { return cmp.Compare(a.Name, b.Name) }),
	}
	for _, u := range units {
		p.units[u.Name] = u
	}
	declared := maps.Clone(p.units)
	for name, u := range declared {
		u.Replaces = slices.DeleteFunc(slices.Clone(u.Replaces), func(r string) bool {
			return reaches(r, name, func(at string) []string { return declared[at].Replaces })
		})
		p.units[name] = u
	}
	p.order = inOrder(p.units)
	for _, m := range p.machines {
		p.has[m.Name] = map[string]bool{}
		for _, c := range m.Runs {
			p.has[m.Name][c] = true
		}
	}
	return p
}

// keep puts the units where they were before, as far as the rules allow it.
func (p *placer) keep(before map[string][]string) {
	for _, u := range p.order {
		if u.Global {
			continue
		}
		for _, name := range slices.Sorted(slices.Values(before[u.Name])) {
			if m, ok := p.machine(name); ok && p.objection(u, m) == "" {
				p.put(u, m)
				break // it runs once
			}
		}
	}
}

// place finds machines for the remaining units. It reports whether a unit was moved to make room for another: then it has
// updated was, and the caller starts again from that.
func (p *placer) place(was map[string][]string) (again bool) {
	for _, u := range p.order {
		if u.Global || len(p.on[u.Name]) > 0 {
			continue
		}
		var running []Unit // units that u replaces
		for _, name := range u.Replaces {
			if r, ok := p.units[name]; ok && !r.Global && len(p.on[name]) > 0 {
				running = append(running, r)
			}
		}
		if len(running) > 0 && !p.settled {
			if p.replace(u, running, was) {
				return true
			}
			continue
		}
		if m, ok := p.machine(p.choose(u, "")); ok {
			p.put(u, m)
		}
	}
	for _, u := range p.order {
		if !u.Global {
			continue
		}
		for _, m := range p.machines {
			if p.has[m.Name][u.Name] || p.objection(u, m) == "" {
				p.put(u, m)
			}
		}
	}
	for _, u := range p.order {
		if _, known := p.reasons[u.Name]; !known && len(p.on[u.Name]) == 0 {
			p.reasons[u.Name] = p.reason(u)
		}
	}
	return false
}

// choose returns the machine with the fewest units that the unit may run on, or "". It never returns the machine not.
func (p *placer) choose(u Unit, not string) string {
	best := ""
	for _, m := range p.machines {
		if m.Name == not || m.Unlisted || p.objection(u, m) != "" {
			continue
		}
		if best == "" || p.load[m.Name] < p.load[best] {
			best = m.Name
		}
	}
	return best
}

func (p *placer) put(u Unit, m Machine) {
	if !slices.Contains(p.on[u.Name], m.Name) {
		p.on[u.Name] = append(p.on[u.Name], m.Name)
	}
	p.has[m.Name][u.Name] = true
	if u.Global {
		return
	}
	p.load[m.Name]++
	for _, w := range u.With { // units that are placed later must not exclude a global unit that u depends on
		if g, ok := p.units[w]; ok && g.Global {
			p.put(g, m)
		}
	}
}

func (p *placer) take(u Unit, machine string) {
	p.on[u.Name] = slices.DeleteFunc(p.on[u.Name], func(m string) bool { return m == machine })
	delete(p.has[machine], u.Name)
	p.load[machine]--
}

func (p *placer) machine(name string) (Machine, bool) {
	i := slices.IndexFunc(p.machines, func(m Machine) bool { return m.Name == name })
	if i < 0 {
		return Machine{}, false
	}
	return p.machines[i], true
}

func (p *placer) decision() Decision {
	d := Decision{On: map[string][]string{}}
	for name, on := range p.on {
		if len(on) > 0 {
			slices.Sort(on)
			d.On[name] = on
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.reasons)) {
		d.Unplaced = append(d.Unplaced, Unplaced{name, p.reasons[name]})
	}
	return d
}

// objection returns why the unit may not run on the machine as it is filled now; empty: it may.
func (p *placer) objection(u Unit, m Machine) string {
	switch {
	case m.Unlisted && !u.Global:
		return "the spec does not list it, and the unit is not global"
	case u.Pin != "" && u.Pin != m.Name:
		return "the unit is pinned to " + u.Pin
	}
	for _, key := range slices.Sorted(maps.Keys(u.On)) {
		have, ok := m.Labels[key]
		switch want := strings.Join(u.On[key], " or "); {
		case !ok:
			return fmt.Sprintf("it has no label %s, the unit needs %s", key, want)
		case !slices.Contains(u.On[key], have):
			return fmt.Sprintf("label %s is %s, the unit needs %s", key, have, want)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.has[m.Name])) {
		other, isUnit := p.units[name]
		if name != u.Name && (repels(u, name, isUnit) || isUnit && repels(other, u.Name, true)) {
			return "conflict with " + name
		}
	}
	for _, w := range u.With {
		if p.has[m.Name][w] {
			continue
		}
		if g, ok := p.units[w]; ok && g.Global && !u.Global && p.objection(g, m) == "" {
			continue
		}
		return "it does not have " + w
	}
	return ""
}

// repels reports whether u must not run on the same machine as other, a unit or a component.
func repels(u Unit, other string, isUnit bool) bool {
	if slices.Contains(u.Replaces, other) {
		return true
	}
	return slices.ContainsFunc(u.Conflicts, func(pattern string) bool {
		ok, err := path.Match(pattern, other)
		return ok && err == nil && (isUnit || !strings.ContainsAny(pattern[:1], "*?["))
	})
}

// reason lists why no machine is suitable.
func (p *placer) reason(u Unit) string {
	if len(p.machines) == 0 {
		return "there is no machine"
	}
	if _, ok := p.machine(u.Pin); u.Pin != "" && !ok {
		return "it is pinned to " + u.Pin + ", which does not exist"
	}
	names := map[string][]string{}
	var order []string
	for _, m := range p.machines {
		why := p.objection(u, m)
		if names[why] == nil {
			order = append(order, why)
		}
		names[why] = append(names[why], m.Name)
	}
	parts := make([]string, 0, len(order))
	for _, why := range order {
		list := names[why]
		if len(list) > 3 {
			list = append(list[:3:3], fmt.Sprintf("%d more", len(list)-3))
		}
		parts = append(parts, strings.Join(list, ", ")+": "+why)
	}
	return strings.Join(parts, "; ")
}

// replace gives u the machine of a unit that it replaces, if that unit can move. It writes the new placement to was. It does
// not change p, except for the reason if no unit can move.
func (p *placer) replace(u Unit, replaced []Unit, was map[string][]string) bool {
	var why []string
	for _, r := range replaced {
		at, _ := p.machine(p.on[r.Name][0])
		var moving []Unit
		for _, x := range replaced {
			if p.has[at.Name][x.Name] {
				moving = append(moving, x)
				p.take(x, at.Name)
			}
		}
		if objection := p.objection(u, at); objection != "" {
			why = append(why, at.Name+", where it would replace "+r.Name+": "+objection)
		} else if to, stuck := p.elsewhere(u, at, moving); stuck != "" {
			why = append(why, at.Name+", where it would replace "+r.Name+": "+stuck)
		} else {
			was[u.Name] = []string{at.Name}
			maps.Copy(was, to)
			return true
		}
		for _, x := range moving {
			p.put(x, at)
		}
	}
	p.reasons[u.Name] = strings.Join(why, "; ")
	return false
}

// elsewhere finds other machines for the units that make room for u, assuming that u is already on its machine. It does not
// change p.
func (p *placer) elsewhere(u Unit, at Machine, moving []Unit) (to map[string][]string, stuck string) {
	p.put(u, at)
	to = map[string][]string{}
	var put []Unit
	for _, x := range moving {
		name := p.choose(x, at.Name)
		if name == "" {
			stuck = "no other machine is suitable for " + x.Name
			break
		}
		m, _ := p.machine(name)
		p.put(x, m)
		put = append(put, x)
		to[x.Name] = []string{name}
	}
	for _, x := range put {
		p.take(x, to[x.Name][0])
	}
	p.take(u, at.Name)
	return to, stuck
}

// reaches reports whether a leads to b by repeated next.
func reaches(a, b string, next func(at string) []string) bool {
	seen := map[string]bool{}
	var walk func(at string) bool
	walk = func(at string) bool {
		if at == b {
			return true
		}
		if seen[at] {
			return false
		}
		seen[at] = true
		return slices.ContainsFunc(next(at), walk)
	}
	return walk(a)
}

// inOrder sorts units by name, each after the units that it depends on or replaces.
func inOrder(units map[string]Unit) []Unit {
	var out []Unit
	seen := map[string]bool{}
	var walk func(name string)
	walk = func(name string) {
		u, ok := units[name]
		if !ok || seen[name] {
			return
		}
		seen[name] = true
		for _, before := range slices.Sorted(slices.Values(slices.Concat(u.With, u.Replaces))) {
			walk(before)
		}
		out = append(out, u)
	}
	for _, name := range slices.Sorted(maps.Keys(units)) {
		walk(name)
	}
	return out
}
