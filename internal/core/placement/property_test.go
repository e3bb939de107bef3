// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/placement"
)

// world draws random machines, units without problems and a previous placement.
func world(r *rand.Rand) (units []unit, machines []machine, before places) {
	pick := func(chance int, from ...string) []string {
		if r.IntN(100) >= chance {
			return nil
		}
		return []string{from[r.IntN(len(from))]}
	}
	for i := range 1 + r.IntN(5) {
		m := machine{Name: fmt.Sprintf("m%d", i), Labels: map[string]string{}, Runs: pick(50, "kubelet", "etcd"), Unlisted: r.IntN(8) == 0}
		for _, k := range []string{"a", "b"} {
			for _, v := range pick(60, "1", "2", "3") {
				m.Labels[k] = v
			}
		}
		machines = append(machines, m)
	}
	names := []string{"u0", "u1", "u2", "u3", "v0", "v1", "v2"}
	before = places{}
	for _, name := range names[:r.IntN(len(names))+1] {
		u := unit{Name: name, Global: r.IntN(5) == 0, With: pick(20, "kubelet", "etcd", names[0], names[2]), Conflicts: pick(25, "u*", "v?", "u1", "etcd", "*")}
		for _, k := range pick(30, "a", "b") {
			u.On = map[string][]string{k: slices.Concat(pick(60, "1", "2"), []string{"3"})}
		}
		if !u.Global {
			u.Replaces = pick(20, "u0", "u1", "v0")
			for _, p := range pick(10, "m0", "m1") {
				u.Pin = p
			}
		}
		if len(placement.Check(append(slices.Clone(units), u), []string{"kubelet", "etcd"}, nil)) > 0 {
			continue
		}
		units = append(units, u)
		if at := pick(40, "m0", "m1", "m2", "m9"); at != nil {
			before[name] = at
		}
	}
	return units, machines, before
}

func check(t *testing.T, units []unit, machines []machine, before places) {
	t.Helper()
	d := placement.Decide(units, machines, before)
	r := rand.New(rand.NewPCG(1, uint64(len(units))))
	r.Shuffle(len(units), func(i, j int) { units[i], units[j] = units[j], units[i] })
	r.Shuffle(len(machines), func(i, j int) { machines[i], machines[j] = machines[j], machines[i] })
	if diff := cmp.Diff(d, placement.Decide(units, machines, before)); diff != "" {
		t.Errorf("the decision depends on the order of the input:\n%s", diff)
	}
	if diff := cmp.Diff(d.On, placement.Decide(units, machines, d.On).On); diff != "" {
		t.Errorf("units %+v\nmachines %+v\nbefore %v\na second decision moves units:\n%s", units, machines, before, diff)
	}
	more := append(slices.Clone(machines), machine{Name: "new"})
	for name, on := range placement.Decide(units, more, d.On).On {
		i := slices.IndexFunc(units, func(u unit) bool { return u.Name == name })
		if was := d.On[name]; !units[i].Global && len(was) > 0 && !slices.Equal(was, on) && len(units[i].With)+len(units[i].Replaces) == 0 && !replaced(units, d, name) {
			t.Errorf("a new machine has moved %s from %v to %v", name, was, on)
		}
	}
	if len(d.On)+len(d.Unplaced) != len(units) {
		t.Errorf("%d placed, %d unplaced, of %d", len(d.On), len(d.Unplaced), len(units))
	}
	has := map[string][]string{}
	for _, m := range machines {
		has[m.Name] = slices.Clone(m.Runs)
	}
	for name, on := range d.On {
		for _, m := range on {
			has[m] = append(has[m], name)
		}
	}
	for _, u := range units {
		obeys(t, u, d, machines, has)
	}
}

// replaced reports whether a unit waits for this unit's machine.
func replaced(units []unit, d placement.Decision, name string) bool {
	return slices.ContainsFunc(units, func(u unit) bool { return slices.Contains(u.Replaces, name) && len(d.On[u.Name]) == 0 })
}

// obeys checks each rule.
func obeys(t *testing.T, u unit, d placement.Decision, machines []machine, has map[string][]string) {
	t.Helper()
	if !u.Global && len(d.On[u.Name]) > 1 {
		t.Errorf("%s runs on %v", u.Name, d.On[u.Name])
	}
	for _, name := range d.On[u.Name] {
		m := machines[slices.IndexFunc(machines, func(m machine) bool { return m.Name == name })]
		if u.Pin != "" && u.Pin != name || m.Unlisted && !u.Global {
			t.Errorf("%s, pinned to %q, is on %s", u.Name, u.Pin, name)
		}
		for k, values := range u.On {
			if !slices.Contains(values, m.Labels[k]) {
				t.Errorf("%s wants %s in %v and is on %s %v", u.Name, k, values, name, m.Labels)
			}
		}
		for _, w := range u.With {
			if !slices.Contains(has[name], w) {
				t.Errorf("%s wants %s and is on %s with %v", u.Name, w, name, has[name])
			}
		}
		for _, pattern := range u.Conflicts {
			for _, other := range has[name] {
				component := other == "kubelet" || other == "etcd"
				if ok, _ := path.Match(pattern, other); ok && other != u.Name && !(component && pattern == "*") {
					t.Errorf("%s conflicts with %s, and both are on %s", u.Name, other, name)
				}
			}
		}
	}
}

func TestDecideRandomly(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4000) {
		units, machines, before := world(rand.New(rand.NewPCG(seed, 0)))
		check(t, units, machines, before)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func FuzzDecide(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, a, b uint64) {
		units, machines, before := world(rand.New(rand.NewPCG(a, b)))
		check(t, units, machines, before)
	})
}

func FuzzExpand(f *testing.F) {
	f.Add("db@main", "%p-%i 100%% %n")
	f.Fuzz(func(t *testing.T, name, text string) {
		if got, err := placement.Expand(name, placement.Escape(text)); err != nil || got != text {
			t.Errorf("%q escaped and expanded is %q, %v", text, got, err)
		}
		if got, err := placement.Expand(name, text); err != nil && got != "" {
			t.Errorf("%q gives %q and %v", text, got, err)
		}
	})
}
