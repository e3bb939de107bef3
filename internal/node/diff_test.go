// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/plan"
)

// has is a machine that answers from a table and refuses to do anything.
type has struct {
	Host   // its other methods panic: Diff must not call them
	states map[string]plan.State
}

func (h has) Observe(_ context.Context, e plan.Entry) (plan.State, error) {
	if s, ok := h.states[e.Ref.String()]; ok {
		return s, nil
	}
	return plan.State{}, errors.New("disk does not answer")
}

func TestDiff(t *testing.T) {
	t.Parallel()
	var old plan.Builder
	old.Add(plan.File{Path: "/gone"})
	old.Add(plan.File{Path: "/gone-already"})
	var next plan.Builder
	conf := next.Add(plan.File{Path: "/conf"})
	next.Add(plan.File{Path: "/same"})
	next.Add(plan.File{Path: "/new"})
	next.Add(plan.File{Path: "/dark"})
	next.Add(plan.File{Path: "/shrug"})
	next.Add(plan.Unit{Name: "reader", Inputs: []plan.Ref{conf}}, conf)
	next.Add(plan.Unit{Name: "other"})
	next.Add(plan.Unit{Name: "absent", Inputs: []plan.Ref{conf}}, conf)
	next.Add(plan.Precondition{Name: "door"})

	good := plan.State{Existence: plan.Present, Matches: true, Ready: true}
	absent := plan.State{Existence: plan.Absent}
	a, err := New(Config{
		Host: has{states: map[string]plan.State{
			"file//gone": good, "file//gone-already": absent, "file//same": good, "file//new": absent,
			"file//conf": {Existence: plan.Present, Detail: "its content differs"}, "file//shrug": {Detail: "a folder is in the way"},
			"unit/reader": good, "unit/other": good, "unit/absent": absent, "precondition/door": {},
		}},
		PlanFile: filepath.Join(t.TempDir(), "plan.json"), Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	a.kept.Want = rawPlan{Plan: old.Plan("c", "n", "1")}

	steps, unknown, err := a.Diff(t.Context(), next.Plan("c", "n", "1"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range append(steps, unknown...) {
		got = append(got, string(s.Verb)+" "+s.Ref.String()+": "+s.Why)
	}
	want := []string{
		"remove file//gone: the plan no longer has it",
		"replace file//conf: its content differs",
		"create file//new: it does not exist",
		"replace unit/reader: its input file//conf changes",
		"create unit/absent: it does not exist",
		" file//dark: disk does not answer",
		" file//shrug: a folder is in the way",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}
