// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/placement"
)

type (
	unit    = placement.Unit
	machine = placement.Machine
	places  = map[string][]string
)

func machines(n int) []machine {
	var out []machine
	for i := range n {
		out = append(out, machine{Name: fmt.Sprintf("m%d", i+1), Labels: map[string]string{"disk": []string{"ssd", "hdd"}[i%2]}, Runs: []string{"kubelet"}})
	}
	return out
}

func decide(t *testing.T, units []unit, machines []machine, before places) places {
	t.Helper()
	if problems := placement.Check(units, []string{"kubelet", "kube-apiserver"}, nil); len(problems) > 0 {
		t.Fatal(problems)
	}
	d := placement.Decide(units, machines, before)
	for _, u := range d.Unplaced {
		if u.Reason == "" || len(d.On[u.Unit]) > 0 {
			t.Errorf("unit %s is on %v and unplaced because %q", u.Unit, d.On[u.Unit], u.Reason)
		}
	}
	if len(d.On)+len(d.Unplaced) != len(units) {
		t.Errorf("%d units are placed and %d not, of %d", len(d.On), len(d.Unplaced), len(units))
	}
	return d.On
}

func same(t *testing.T, what string, want, got places) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// TF-1: a unit runs with another, and moves with it.
func TestTF1DependentMovesAlong(t *testing.T) {
	t.Parallel()
	units := []unit{{Name: "a", With: []string{"x"}}, {Name: "b", With: []string{"a", "x"}}, {Name: "x"}, {Name: "z"}}
	first := decide(t, units, machines(3), nil)
	same(t, "first", places{"a": {"m1"}, "b": {"m1"}, "x": {"m1"}, "z": {"m2"}}, first)
	units[2].Pin = "m3"
	same(t, "x was moved", places{"a": {"m3"}, "b": {"m3"}, "x": {"m3"}, "z": {"m2"}}, decide(t, units, machines(3), first))
	units[2].Pin = "m9"
	same(t, "x cannot be placed", places{"z": {"m2"}}, decide(t, units, machines(3), first))
}

func TestTF1WithAComponent(t *testing.T) {
	t.Parallel()
	all := machines(3)
	all[1].Runs = append(all[1].Runs, "kube-apiserver")
	got := decide(t, []unit{{Name: "one", With: []string{"kube-apiserver"}}, {Name: "all", Global: true, With: []string{"kubelet"}}}, all, nil)
	same(t, "places", places{"one": {"m2"}, "all": {"m1", "m2", "m3"}}, got)
}

// TF-2: units that conflict never share a machine; surplus units wait, with the reason.
func TestTF2Conflicts(t *testing.T) {
	t.Parallel()
	var units []unit
	for i := range 5 {
		units = append(units, unit{Name: fmt.Sprintf("c@%d", i), Conflicts: []string{"c@*"}})
	}
	d := placement.Decide(units, machines(3), nil)
	same(t, "places", places{"c@0": {"m1"}, "c@1": {"m2"}, "c@2": {"m3"}}, d.On)
	want := []placement.Unplaced{
		{Unit: "c@3", Reason: "m1: conflict with c@0; m2: conflict with c@1; m3: conflict with c@2"},
		{Unit: "c@4", Reason: "m1: conflict with c@0; m2: conflict with c@1; m3: conflict with c@2"},
	}
	if diff := cmp.Diff(want, d.Unplaced); diff != "" {
		t.Errorf("unplaced (-want +got):\n%s", diff)
	}
}

// TF-3: one side is enough, and when that unit is removed, the other runs.
func TestTF3OneWayConflict(t *testing.T) {
	t.Parallel()
	units := []unit{{Name: "a"}, {Name: "loner", Conflicts: []string{"*"}}}
	first := decide(t, units, machines(1), nil)
	same(t, "both", places{"a": {"m1"}}, first)
	same(t, "one was removed", places{"loner": {"m1"}}, decide(t, units[1:], machines(1), first))
}

// TF-4: several patterns all hold.
func TestTF4SeveralConflicts(t *testing.T) {
	t.Parallel()
	units := []unit{{Name: "a1", Pin: "m1"}, {Name: "b1", Pin: "m2"}, {Name: "x", Conflicts: []string{"a?", "b[0-9]"}}}
	same(t, "places", places{"a1": {"m1"}, "b1": {"m2"}, "x": {"m3"}}, decide(t, units, machines(3), nil))
	same(t, "no room", places{"a1": {"m1"}, "b1": {"m2"}}, decide(t, units, machines(2), nil))
}

// TF-5: the replaced unit moves, with the unit that depends on it; then nothing moves any more.
func TestTF5Replaces(t *testing.T) {
	t.Parallel()
	before := places{"old": {"m1"}, "dependent": {"m1"}}
	units := []unit{{Name: "old"}, {Name: "dependent", With: []string{"old"}}, {Name: "new", Replaces: []string{"old"}}}
	want := places{"new": {"m1"}, "old": {"m2"}, "dependent": {"m2"}}
	got := decide(t, units, machines(2), before)
	same(t, "replaced", want, got)
	same(t, "again", want, decide(t, units, machines(2), got))
	same(t, "from scratch", want, decide(t, units, machines(2), nil))

	d := placement.Decide(units, machines(1), places{"old": {"m1"}, "dependent": {"m1"}})
	same(t, "nowhere to go", places{"old": {"m1"}, "dependent": {"m1"}}, d.On)
	if want := "m1, where it would replace old: no other machine is suitable for old"; len(d.Unplaced) != 1 || d.Unplaced[0].Reason != want {
		t.Errorf("unplaced %v, want %q", d.Unplaced, want)
	}
}

func TestTF5CircularReplaces(t *testing.T) {
	t.Parallel()
	for name, units := range map[string][]unit{
		"two":   {{Name: "a", Replaces: []string{"b"}}, {Name: "b", Replaces: []string{"a"}}},
		"three": {{Name: "a", Replaces: []string{"b"}}, {Name: "b", Replaces: []string{"c"}}, {Name: "c", Replaces: []string{"a"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for n := 1; n < 4; n++ {
				first := decide(t, units, machines(n), nil)
				if len(first) != len(units) {
					t.Errorf("%d machines: a unit is lost: %v", n, first)
				}
				same(t, "again", first, decide(t, units, machines(n), first))
			}
		})
	}
}

// TF-6: a pinned unit runs nowhere else, even if its machine is away.
func TestTF6Pinned(t *testing.T) {
	t.Parallel()
	units := []unit{{Name: "p", Pin: "m2"}}
	same(t, "there", places{"p": {"m2"}}, decide(t, units, machines(3), places{"p": {"m1"}}))
	d := placement.Decide(units, machines(1), places{"p": {"m2"}})
	if want := []placement.Unplaced{{Unit: "p", Reason: "it is pinned to m2, which does not exist"}}; len(d.On) > 0 || !cmp.Equal(want, d.Unplaced) {
		t.Errorf("placed on %v, unplaced %v", d.On, d.Unplaced)
	}
}

// TF-7: a global unit is on all machines, the newest too; labels restrict it, and follow a change.
func TestTF7Global(t *testing.T) {
	t.Parallel()
	units := []unit{{Name: "all", Global: true}, {Name: "ssd", Global: true, On: map[string][]string{"disk": {"ssd"}}}}
	all := machines(3)
	first := decide(t, units, all[:2], nil)
	same(t, "two machines", places{"all": {"m1", "m2"}, "ssd": {"m1"}}, first)
	second := decide(t, units, all, first)
	same(t, "a third", places{"all": {"m1", "m2", "m3"}, "ssd": {"m1", "m3"}}, second)
	all[0].Labels, all[1].Labels = all[1].Labels, all[0].Labels
	same(t, "labels exchanged", places{"all": {"m1", "m2", "m3"}, "ssd": {"m2", "m3"}}, decide(t, units, all, second))
}

// TF-7, the tutorial's wording: values of one key are alternatives, keys are not.
func TestTF7Labels(t *testing.T) {
	t.Parallel()
	machines := []machine{
		{Name: "m1", Labels: map[string]string{"zone": "a", "disk": "hdd"}},
		{Name: "m2", Labels: map[string]string{"zone": "b"}},
		{Name: "m3", Labels: map[string]string{"zone": "c", "disk": "ssd"}},
		{Name: "m4", Labels: map[string]string{"zone": "b", "disk": "ssd"}},
	}
	d := placement.Decide([]unit{
		{Name: "u", Global: true, On: map[string][]string{"zone": {"a", "b"}, "disk": {"ssd"}}},
		{Name: "v", On: map[string][]string{"disk": {"tape", "ram"}}},
	}, machines, nil)
	same(t, "places", places{"u": {"m4"}}, d.On)
	want := "m1: label disk is hdd, the unit needs tape or ram; m2: it has no label disk, the unit needs tape or ram; m3, m4: label disk is ssd, the unit needs tape or ram"
	if len(d.Unplaced) != 1 || d.Unplaced[0].Reason != want {
		t.Errorf("unplaced %v\nwant %s", d.Unplaced, want)
	}
}

// TF-8: a global unit is kept off exactly the machines with a conflict, whichever unit declares it.
func TestTF8GlobalConflicts(t *testing.T) {
	t.Parallel()
	all := machines(3)
	all[2].Runs = append(all[2].Runs, "kube-apiserver")
	units := []unit{
		{Name: "g", Global: true, Conflicts: []string{"db*"}},
		{Name: "db", Pin: "m2"},
		{Name: "shy", Pin: "m1", Conflicts: []string{"h"}},
		{Name: "h", Global: true, Conflicts: []string{"kube-*"}},
	}
	same(t, "places", places{"g": {"m1", "m3"}, "h": {"m2"}, "db": {"m2"}, "shy": {"m1"}}, decide(t, units, all, nil))
}

// TF-9: a dead machine's units run elsewhere; a new machine attracts nothing.
func TestTF9DeadAndNewMachines(t *testing.T) {
	t.Parallel()
	units := []unit{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}}
	first := decide(t, units, machines(2), nil)
	same(t, "spread", places{"a": {"m1"}, "b": {"m2"}, "c": {"m1"}, "d": {"m2"}}, first)
	same(t, "more machines", first, decide(t, units, machines(4), first))
	after := decide(t, units, machines(3)[1:], first)
	same(t, "m1 is dead, m3 is new", places{"a": {"m3"}, "b": {"m2"}, "c": {"m3"}, "d": {"m2"}}, after)
	same(t, "m1 is back", after, decide(t, units, machines(3), after))
}

// TF-10: a unit runs exactly once, also when it was recorded on two machines, and repeated decisions do not move it.
func TestTF10Once(t *testing.T) {
	t.Parallel()
	units := []unit{{Name: "a"}, {Name: "b"}}
	now := places{"a": {"m1", "m2"}}
	for range 3 {
		now = decide(t, units, machines(2), now)
		same(t, "recorded on two machines", places{"a": {"m1"}, "b": {"m2"}}, now)
	}
}

// TF-18: a rule that is not understood is refused, not ignored.
func TestTF18BadRules(t *testing.T) {
	t.Parallel()
	ok := unit{Name: "ok"}
	for name, tc := range map[string]struct {
		units []unit
		want  string
	}{
		"fine":                 {[]unit{{Name: "a", With: []string{"ok", "kubelet"}, Pin: "m1", Conflicts: []string{"b*"}}}, ""},
		"a pattern":            {[]unit{{Name: "a", Conflicts: []string{"ok", "[x"}}}, `unit a: conflicts: "[x" is not a pattern`},
		"an empty pattern":     {[]unit{{Name: "a", Conflicts: []string{""}}}, `unit a: conflicts: "" is not a pattern`},
		"a label without":      {[]unit{{Name: "a", On: map[string][]string{"x": nil}}}, `unit a: on: label "x" has no values`},
		"unknown unit":         {[]unit{{Name: "a", With: []string{"okay"}}}, `unit a: with: there is no unit or component "okay": choose one of a, kubelet, ok`},
		"itself":               {[]unit{{Name: "a", With: []string{"a"}}}, `unit a: with: it names the unit itself`},
		"each other":           {[]unit{{Name: "a", With: []string{"b"}}, {Name: "b", With: []string{"a"}}}, `unit a: with: b depends on a as well`},
		"with and against":     {[]unit{{Name: "a", With: []string{"b"}}, {Name: "b", Conflicts: []string{"a"}}}, `unit a: with: the two units conflict`},
		"a machine":            {[]unit{{Name: "a", Pin: "m7"}}, `unit a: pin: there is no machine "m7": the machines are m1, m2`},
		"global and pinned":    {[]unit{{Name: "a", Global: true, Pin: "m1"}}, `unit a: global: a unit for all machines cannot be pinned`},
		"global and replacing": {[]unit{{Name: "a", Global: true, Replaces: []string{"ok"}}}, `unit a: global: a unit for all machines leaves no machine`},
		"replaces itself":      {[]unit{{Name: "a", Replaces: []string{"a"}}}, `unit a: replaces: it names the unit itself`},
		"replaces a component": {[]unit{{Name: "a", Replaces: []string{"kubelet"}}}, `unit a: replaces: there is no unit "kubelet"`},
		"replaces a global":    {[]unit{{Name: "a", Replaces: []string{"g"}}, {Name: "g", Global: true}}, `unit a: replaces: g is for all machines`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var text strings.Builder
			for _, p := range placement.Check(append(tc.units, ok), []string{"kubelet"}, []string{"m2", "m1"}) {
				text.WriteString(p.String())
			}
			if got := text.String(); (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
				t.Errorf("problems %q\nwant     %q", got, tc.want)
			}
		})
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	got, bad := placement.Resolve(unit{
		Name: "db@main.service", With: []string{"volume@%i.service", "%p"}, Conflicts: []string{"%p@*.service", "%N"}, Replaces: []string{"old-%i"},
		On: map[string][]string{"set": {"%i", "100%%"}}, Pin: "%p-%i",
	})
	if bad != nil {
		t.Fatal(bad)
	}
	want := unit{
		Name: "db@main", With: []string{"volume@main", "db"}, Conflicts: []string{"db@*", "db@main"}, Replaces: []string{"old-main"},
		On: map[string][]string{"set": {"main", "100%"}}, Pin: "db-main",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("resolved (-want +got):\n%s", diff)
	}
	for field, u := range map[string]unit{
		"with": {With: []string{"%x"}}, "conflicts": {Conflicts: []string{"%"}}, "replaces": {Replaces: []string{"% n"}}, "pin": {Pin: "%H"},
		"on.k": {On: map[string][]string{"k": {"a", "%m"}}},
	} {
		if _, bad := placement.Resolve(u); bad == nil || bad.Field != field || bad.Msg == "" {
			t.Errorf("%s: problem %v", field, bad)
		}
	}
}
