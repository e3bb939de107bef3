// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

func compare(a, b string) int { return cmp.Compare(a, b) }

// objection is why the unit may not run on the machine as it is filled now; empty: it may.
func (f *field) objection(u Unit, m Machine) string {
	switch {
	case m.Guest && !u.Global:
		return "the spec does not list it, and the unit is not global"
	case u.Pin != "" && u.Pin != m.Name:
		return "the unit is pinned to " + u.Pin
	}
	for _, key := range slices.Sorted(maps.Keys(u.On)) {
		have, ok := m.Labels[key]
		switch want := strings.Join(u.On[key], " or "); {
		case !ok:
			return fmt.Sprintf("it has no label %s, wanted is %s", key, want)
		case !slices.Contains(u.On[key], have):
			return fmt.Sprintf("label %s is %s, wanted is %s", key, have, want)
		}
	}
	if other := f.clash(u, m); other != "" {
		return "conflict with " + other
	}
	for _, w := range u.With {
		if f.has[m.Name][w] {
			continue
		}
		if g, ok := f.units[w]; ok && g.Global && !u.Global {
			if why := f.objection(g, m); why == "" {
				continue
			}
		}
		return "it does not have " + w
	}
	return ""
}

// clash is what the machine has that cannot be together with the unit.
func (f *field) clash(u Unit, m Machine) string {
	for _, name := range slices.Sorted(maps.Keys(f.has[m.Name])) {
		other, placed := f.units[name]
		if name == u.Name {
			continue
		}
		if placed && (u.repels(name, true) || other.repels(u.Name, true)) || !placed && u.repels(name, false) {
			return name
		}
	}
	return ""
}

// repels tells whether u has said that it is never beside other, which is a unit or a component.
func (u Unit) repels(other string, isUnit bool) bool {
	if slices.Contains(u.Replaces, other) {
		return true
	}
	return slices.ContainsFunc(u.Conflicts, func(pattern string) bool {
		ok, err := path.Match(pattern, other)
		return ok && err == nil && (isUnit || !strings.ContainsAny(pattern[:1], "*?["))
	})
}

// reason puts together why each machine will not do.
func (f *field) reason(u Unit) string {
	if len(f.machines) == 0 {
		return "there is no machine"
	}
	if _, ok := f.machine(u.Pin); u.Pin != "" && !ok {
		return "it is pinned to " + u.Pin + ", which is not there"
	}
	names := map[string][]string{}
	var order []string
	for _, m := range f.machines {
		why := f.objection(u, m)
		if why == "" {
			why = "nobody knows how it is"
		}
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

// standing are those of the named units that run, in this order.
func (f *field) standing(names []string) []Unit {
	var out []Unit
	for _, name := range names {
		if r, ok := f.units[name]; ok && !r.Global && len(f.on[name]) > 0 {
			out = append(out, r)
		}
	}
	return out
}

// replace gives u the machine of a unit that it replaces, if that one can go elsewhere. It only writes down in was what shall be.
func (f *field) replace(u Unit, replaced []Unit, was map[string][]string) bool {
	var why []string
	for _, r := range replaced {
		at, _ := f.machine(f.on[r.Name][0])
		var moving []Unit
		for _, x := range replaced {
			if f.has[at.Name][x.Name] {
				moving = append(moving, x)
				f.take(x, at.Name)
			}
		}
		if objection := f.objection(u, at); objection != "" || at.Silent {
			why = append(why, at.Name+", where it would replace "+r.Name+": "+cmp.Or(objection, "nobody knows how it is"))
		} else if to, stuck := f.elsewhere(u, at, moving); stuck != "" {
			why = append(why, at.Name+", where it would replace "+r.Name+": "+stuck)
		} else {
			was[u.Name] = []string{at.Name}
			maps.Copy(was, to)
			return true
		}
		for _, x := range moving {
			f.put(x, at)
		}
	}
	f.reasons[u.Name] = strings.Join(why, "; ")
	return false
}

// elsewhere finds machines for those that make room for u, as if u were at its place already.
func (f *field) elsewhere(u Unit, at Machine, moving []Unit) (to map[string][]string, stuck string) {
	f.put(u, at)
	to = map[string][]string{}
	var put []Unit
	for _, x := range moving {
		name := f.choose(x, at.Name)
		if name == "" {
			stuck = "no other machine will have " + x.Name
			break
		}
		m, _ := f.machine(name)
		f.put(x, m)
		put = append(put, x)
		to[x.Name] = []string{name}
	}
	for _, x := range put {
		f.take(x, to[x.Name][0])
	}
	f.take(u, at.Name)
	return to, stuck
}

// reaches tells whether a leads to b, from each to those that come next.
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

// inOrder sorts by name, and what a unit needs before it: its company, and those that it replaces.
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
