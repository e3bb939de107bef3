// SPDX-License-Identifier: Apache-2.0

package lock

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// starts returns the initial states of the tests, and the steps that lead there.
func starts() map[string][]func(*Lock) error {
	claim := func(by By, id string) func(*Lock) error { return func(l *Lock) error { return l.Claim(by, id) } }
	commit := func(l *Lock) error { return l.Commit("r1", "c1", "n1") }
	return map[string][]func(*Lock) error{
		"free":                  nil,
		"claimed (init r1)":     {claim(Init, "r1")},
		"claimed (join r1)":     {claim(Join, "r1")},
		"committed":             {claim(Init, "r1"), commit},
		"released":              {claim(Init, "r1"), func(l *Lock) error { return l.Release("r1") }},
		"reset":                 {claim(Init, "r1"), commit, func(l *Lock) error { return l.Reset("c1") }},
		"committed after reset": {claim(Init, "r0"), func(l *Lock) error { return l.Commit("r0", "c0", "n0") }, func(l *Lock) error { return l.Reset("c0") }, claim(Init, "r1"), commit},
	}
}

func at(t *testing.T, steps []func(*Lock) error) (*Lock, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lock")
	l := open(t, path)
	for _, step := range steps {
		if err := step(l); err != nil {
			t.Fatal(err)
		}
	}
	return l, path
}

func open(t *testing.T, path string) *Lock {
	t.Helper()
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestSteps checks the result of every step in every state, and that the lock and the disk agree.
func TestSteps(t *testing.T) {
	t.Parallel()
	free := []string{"free", "released", "reset"}
	member := []string{"committed", "committed after reset"}
	steps := map[string]struct {
		do   func(*Lock) error
		want func(start string) (State, bool) // false: refused
	}{
		"claim init r1": {func(l *Lock) error { return l.Claim(Init, "r1") }, func(s string) (State, bool) {
			return State{Phase: Claimed, By: Init, ID: "r1"}, slices.Contains(free, s) || s == "claimed (init r1)"
		}},
		"claim init r2": {func(l *Lock) error { return l.Claim(Init, "r2") }, func(s string) (State, bool) {
			return State{Phase: Claimed, By: Init, ID: "r2"}, slices.Contains(free, s)
		}},
		"claim join r1": {func(l *Lock) error { return l.Claim(Join, "r1") }, func(s string) (State, bool) {
			return State{Phase: Claimed, By: Join, ID: "r1"}, slices.Contains(free, s) || s == "claimed (join r1)"
		}},
		"commit r1": {func(l *Lock) error { return l.Commit("r1", "c1", "n1") }, func(s string) (State, bool) {
			by := Init
			if s == "claimed (join r1)" {
				by = Join
			}
			return State{Phase: Committed, By: by, ID: "r1", Cluster: "c1", Node: "n1"}, !slices.Contains(free, s)
		}},
		"commit r2": {func(l *Lock) error { return l.Commit("r2", "c1", "n1") }, func(string) (State, bool) { return State{}, false }},
		"commit r1, other cluster": {func(l *Lock) error { return l.Commit("r1", "c2", "n1") }, func(s string) (State, bool) {
			by := Init
			if s == "claimed (join r1)" {
				by = Join
			}
			return State{Phase: Committed, By: by, ID: "r1", Cluster: "c2", Node: "n1"}, !slices.Contains(free, s) && !slices.Contains(member, s)
		}},
		"release r1": {func(l *Lock) error { return l.Release("r1") }, func(s string) (State, bool) {
			return State{Phase: Free}, !slices.Contains(member, s)
		}},
		"release r2": {func(l *Lock) error { return l.Release("r2") }, func(s string) (State, bool) { return State{Phase: Free}, slices.Contains(free, s) }},
		"reset c1":   {func(l *Lock) error { return l.Reset("c1") }, func(s string) (State, bool) { return State{Phase: Free}, slices.Contains(member, s) }},
		"reset c2":   {func(l *Lock) error { return l.Reset("c2") }, func(string) (State, bool) { return State{}, false }},
		"reset":      {func(l *Lock) error { return l.Reset("") }, func(string) (State, bool) { return State{}, false }},
	}
	for start, way := range starts() {
		for name, step := range steps {
			t.Run(start+": "+name, func(t *testing.T) {
				t.Parallel()
				l, path := at(t, way)
				before := l.State()
				err := step.do(l)
				want, ok := step.want(start)
				var refused *TakenError
				switch {
				case ok && err != nil:
					t.Fatal(err)
				case !ok && !errors.As(err, &refused):
					t.Fatalf("got %v, want a *TakenError", err)
				case !ok:
					want = before
					if diff := cmp.Diff(before, refused.State); diff != "" {
						t.Error(diff)
					}
				}
				if diff := cmp.Diff(want, l.State(), cmpopts.IgnoreFields(State{}, "Since")); diff != "" {
					t.Error(diff)
				}
				if diff := cmp.Diff(l.State(), open(t, path).State()); diff != "" {
					t.Errorf("lock and disk differ: %s", diff)
				}
				if l.State() != before && l.State().Since.IsZero() {
					t.Error("Since is not set")
				}
				if !ok || name == "reset c1" { // a reset cannot be repeated
					return
				}
				if err := step.do(l); err != nil {
					t.Errorf("repeat the step: got %v", err)
				}
			})
		}
	}
}

func TestInvalidArguments(t *testing.T) {
	t.Parallel()
	l, _ := at(t, nil)
	for name, err := range map[string]error{
		"claim by none": l.Claim("", "r1"), "claim by others": l.Claim("x", "r1"), "claim without id": l.Claim(Init, ""),
		"commit without cluster": l.Commit("r1", "", "n1"), "commit without node": l.Commit("r1", "c1", ""),
	} {
		if err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
	if s := l.State(); s.Phase != Free {
		t.Errorf("got lock %s, want free", s)
	}
}

// TestOneWinner: one of 100 claims succeeds, with a shared Lock and with a Lock for each.
func TestOneWinner(t *testing.T) {
	t.Parallel()
	for name, shared := range map[string]bool{"one lock": true, "a lock each": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, path := at(t, nil)
			var all sync.WaitGroup
			errs := make([]error, 100)
			for i := range errs {
				mine := l
				if !shared {
					mine = open(t, path)
				}
				all.Go(func() { errs[i] = mine.Claim([]By{Init, Join}[i%2], string(rune('A'+i))) })
			}
			all.Wait()
			var won []int
			for i, err := range errs {
				var taken *TakenError
				switch {
				case err == nil:
					won = append(won, i)
				case !errors.As(err, &taken) || taken.State.Phase != Claimed:
					t.Errorf("claim %d: got %v", i, err)
				}
			}
			if len(won) != 1 {
				t.Fatalf("got winners %v, want one", won)
			}
			if s := open(t, path).State(); s.ID != string(rune('A'+won[0])) {
				t.Errorf("claim %d won, got lock %s", won[0], s)
			}
		})
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	l, _ := at(t, nil)
	got := make(chan State)
	go func() {
		s, err := l.Wait(t.Context(), func(s State) bool { return s.Phase == Committed })
		if err != nil {
			t.Error(err)
		}
		got <- s
	}()
	if err := errors.Join(l.Claim(Join, "r1"), l.Commit("r1", "c1", "n1")); err != nil {
		t.Fatal(err)
	}
	if s := <-got; s != l.State() {
		t.Errorf("got %s from Wait, lock %s", s, l.State())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Wait(ctx, func(State) bool { return false }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestString(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]State{
		"free":                    {Phase: Free},
		"claimed (init r1)":       {Phase: Claimed, By: Init, ID: "r1"},
		"committed (cluster c1)":  {Phase: Committed, By: Join, ID: "r1", Cluster: "c1", Node: "n1"},
		`in the unknown phase ""`: {},
	} {
		if s.String() != want {
			t.Errorf("got %q, want %q", s, want)
		}
	}
}
