// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/slipway-project/slipway/internal/core/plan"
)

func TestDiff(t *testing.T) {
	t.Parallel()
	dir, file := plan.Dir{Path: "/d"}, plan.Artifact{Path: "/d/f"}
	precondition := plan.Precondition{Name: "g"}
	chain := func(items ...plan.Item) plan.Plan { // each needs the one before
		var b plan.Builder
		var needs []plan.Ref
		for _, it := range items {
			needs = []plan.Ref{b.Add(it, needs...)}
		}
		return b.Plan("c", "n", "r")
	}
	absent, differs := plan.State{Existence: plan.Absent}, plan.State{Existence: plan.Present}
	right := plan.State{Existence: plan.Present, Matches: true}
	for name, tc := range map[string]struct {
		want, before plan.Plan
		have         map[string]plan.State
		steps        []string
	}{
		"unknown is not absent": {want: chain(dir)},
		"absent":                {want: chain(dir), have: map[string]plan.State{"dir//d": absent}, steps: []string{"create dir//d: it does not exist"}},
		"differs":               {want: chain(dir), have: map[string]plan.State{"dir//d": differs}, steps: []string{"replace dir//d: it differs from the plan"}},
		"the host's own reason": {
			want: chain(dir), have: map[string]plan.State{"dir//d": {Existence: plan.Present, Detail: "mode 0777"}},
			steps: []string{"replace dir//d: mode 0777"},
		},
		"matches but is not ready": {want: chain(dir), have: map[string]plan.State{"dir//d": right}},
		"preconditions have no steps": {
			want: chain(precondition), before: chain(plan.Precondition{Name: "old"}),
			have: map[string]plan.State{"precondition/g": absent, "precondition/old": right},
		},
		"precondition that differs": {want: chain(precondition), have: map[string]plan.State{"precondition/g": differs}},
		"removals in reverse order": {
			want: chain(plan.Dir{Path: "/new"}), before: chain(dir, file, plan.StaticPod{Name: "p", Path: "/p"}),
			have: map[string]plan.State{"dir//d": right, "artifact//d/f": differs, "staticpod/p": right, "dir//new": absent},
			steps: []string{
				"remove staticpod/p: the plan no longer has it", "remove artifact//d/f: the plan no longer has it", "remove dir//d: the plan no longer has it",
				"create dir//new: it does not exist",
			},
		},
		"unknown and absent entries are not removed": {before: chain(dir, file), have: map[string]plan.State{"dir//d": absent}},
		"same entries in another order":              {want: chain(file, dir), before: chain(dir, file), have: map[string]plan.State{"dir//d": right, "artifact//d/f": right}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			have := plan.Observed{}
			for _, e := range append(tc.want.Entries, tc.before.Entries...) {
				if s, ok := tc.have[e.Ref.String()]; ok {
					have[e.Ref] = s
				}
			}
			var steps []string
			for _, s := range plan.Diff(tc.want, tc.before, have) {
				steps = append(steps, string(s.Verb)+" "+s.Ref.String()+": "+s.Why)
			}
			if diff := cmp.Diff(tc.steps, steps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
		})
	}
}

// drawPlan draws a random valid plan over a small set of names, so that two plans overlap.
func drawPlan(t *rapid.T, label string) plan.Plan {
	var b plan.Builder
	var refs []plan.Ref
	for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}), 0, 6, rapid.ID[string]).Draw(t, label) {
		item := rapid.SampledFrom([]plan.Item{
			plan.Dir{Path: name}, plan.StaticPod{Name: name, Path: name}, plan.Precondition{Name: name}, plan.Artifact{Path: name}, plan.Kubeconfig{Path: name},
		}).Draw(t, "item")
		var needs []plan.Ref
		if len(refs) > 0 {
			needs = rapid.SliceOfDistinct(rapid.SampledFrom(refs), rapid.ID[plan.Ref]).Draw(t, "needs")
		}
		refs = append(refs, b.Add(item, needs...))
	}
	return b.Plan("c", "n", "r")
}

func TestDiffConverges(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want, before := drawPlan(t, "want"), drawPlan(t, "before")
		have := plan.Observed{}
		for _, e := range append(want.Entries, before.Entries...) {
			have[e.Ref] = plan.State{
				Existence: rapid.SampledFrom([]plan.Existence{plan.Unknown, plan.Absent, plan.Present}).Draw(t, "existence"),
				Matches:   rapid.Bool().Draw(t, "matches"),
			}
		}
		steps := plan.Diff(want, before, have)
		at := map[plan.Ref]int{}
		for i, s := range steps {
			e, wanted := want.Find(s.Ref.String())
			old, _ := before.Find(s.Ref.String())
			switch was := have[s.Ref]; {
			case s.Why == "":
				t.Fatalf("%s %s has no reason", s.Verb, s.Ref)
			case was.Existence == plan.Unknown:
				t.Fatalf("%s %s although its state is unknown", s.Verb, s.Ref)
			case wanted == (s.Verb == plan.Remove) || !wanted && old.Item == nil:
				t.Fatalf("%s %s: wanted %t", s.Verb, s.Ref, wanted)
			case wanted && e.Item.Kind() == plan.KindPrecondition || !wanted && old.Item.Kind() == plan.KindPrecondition:
				t.Fatalf("%s of a precondition", s.Verb)
			}
			at[s.Ref] = i
			have[s.Ref] = plan.State{Existence: plan.Present, Matches: true}
			if s.Verb == plan.Remove {
				have[s.Ref] = plan.State{Existence: plan.Absent}
			}
		}
		inOrder(t, want, before, at)
		if again := plan.Diff(want, before, have); len(again) > 0 {
			t.Fatalf("got steps %v after all were done, want none", again)
		}
	})
}

// inOrder checks that every step comes after the steps it needs; for removals, before.
func inOrder(t *rapid.T, want, before plan.Plan, at map[plan.Ref]int) {
	t.Helper()
	for _, e := range want.Entries {
		for _, n := range e.Needs {
			i, both := at[e.Ref]
			if j, ok := at[n]; ok && both && j > i {
				t.Fatalf("%s comes before its need %s", e.Ref, n)
			}
		}
	}
	for _, e := range plan.Removed(want, before) {
		for _, n := range e.Needs {
			i, both := at[e.Ref]
			_, kept := want.Find(n.String())
			if j, ok := at[n]; ok && both && !kept && j < i {
				t.Fatalf("%s is removed before %s, which needs it", n, e.Ref)
			}
		}
	}
}
