// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/plan"
)

func TestBuilder(t *testing.T) {
	t.Parallel()
	var b plan.Builder
	a := b.Add(plan.Dir{Path: "/a"})
	f := b.Add(plan.File{Path: "/a/f"}, a, a)
	if a.String() != "dir//a" || f.String() != "file//a/f" || a.IsZero() {
		t.Errorf("got references %s, %s", a, f)
	}
	p := b.Plan("c", "n", "r")
	b.Add(plan.Dir{Path: "/later"})
	if len(p.Entries) != 2 {
		t.Errorf("a finished plan changed: %v", p.Entries)
	}
	if needs := p.Entries[1].Needs; len(needs) != 1 || needs[0] != a {
		t.Errorf("got needs %v, want each once", needs)
	}
	if e, ok := p.Find("file//a/f"); !ok || e.Ref != f {
		t.Errorf("got %v %t", e, ok)
	}
	if _, ok := p.Find("file//nothing"); ok {
		t.Error("Plan.Find returned an entry that does not exist")
	}
	if _, ok := b.Find(plan.RefOf(plan.Dir{Path: "/nothing"})); ok {
		t.Error("Builder.Find returned an entry that does not exist")
	}
}

func TestBuilderPanics(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		add  func(b *plan.Builder)
		want string
	}{
		"twice": {func(b *plan.Builder) { b.Add(plan.Dir{Path: "/a", Mode: 1}) }, "plan: dir//a added twice"},
		"need of another plan": {
			func(b *plan.Builder) { b.Add(plan.File{Path: "/f"}, plan.RefOf(plan.Dir{Path: "/b"})) },
			"plan: file//f needs dir//b, which is not in the plan",
		},
		"zero need": {func(b *plan.Builder) { b.Add(plan.File{Path: "/f"}, plan.Ref{}) }, "plan: file//f needs , which is not in the plan"},
		"input without need": {
			func(b *plan.Builder) {
				b.Add(plan.Unit{Name: "u", Inputs: []plan.Ref{plan.RefOf(plan.Dir{Path: "/a"})}})
			},
			"plan: unit/u has input dir//a but does not need it",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var b plan.Builder
			b.Add(plan.Dir{Path: "/a"})
			defer func() {
				if diff := cmp.Diff(any(tc.want), recover()); diff != "" {
					t.Errorf("panic (-want +got):\n%s", diff)
				}
			}()
			tc.add(&b)
		})
	}
}
