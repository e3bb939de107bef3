// SPDX-License-Identifier: Apache-2.0

package reconcile_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-project/slipway/internal/backend/fake"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/reconcile"
)

func TestRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newFake(t)
		h.FailDo("dir//d", errors.New("no disk"), 30)
		l := newLoop(&watchful{Host: h})
		converge(t, l, build(func(b *plan.Builder) { b.Add(plan.Dir{Path: "/d"}) }), plan.Plan{})
		at := l.Host.(*watchful).did
		if len(at) != 31 {
			t.Fatalf("%d attempts, want 31", len(at))
		}
		jitter := map[time.Duration]bool{}
		for i := 1; i < len(at); i++ {
			nominal := min(50*time.Millisecond<<min(i-1, 10), 10*time.Second)
			got := at[i].Sub(at[i-1])
			if got < nominal*9/10 || got > nominal*11/10 {
				t.Errorf("pause %d is %s, want about %s", i, got, nominal)
			}
			if nominal == 10*time.Second {
				jitter[got] = true
			}
		}
		if len(jitter) < 10 {
			t.Errorf("the long pauses are all alike: %v", jitter)
		}
		if s := l.Board.Spans()[0]; s.Attempts != 30 {
			t.Errorf("the trace tells of %d failed attempts", s.Attempts)
		}
	})
}

// watchful notes when steps were tried.
type watchful struct {
	reconcile.Host
	did []time.Time
}

func (w *watchful) Do(ctx context.Context, s plan.Step, e plan.Entry) error {
	w.did = append(w.did, time.Now())
	return w.Host.Do(ctx, s, e)
}

func TestFailuresAreOnTheBoard(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		trouble func(h *fake.Host)
		want    string
	}{
		"a step":         {func(h *fake.Host) { h.FailDo("dir//d", errors.New("no disk"), -1) }, "create: no disk"},
		"an observation": {func(h *fake.Host) { h.FailObserve("dir//d", errors.New("I/O error"), -1) }, "observe: I/O error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newFake(t)
				tc.trouble(h)
				l := newLoop(h)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				err := l.Converge(ctx, build(func(b *plan.Builder) { b.Add(plan.Dir{Path: "/d"}) }), plan.Plan{})
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("converge: %v", err)
				}
				s := phase(l.Board, "dir//d")
				if s.Phase != reconcile.Failing || s.Error != tc.want {
					t.Errorf("the board says %s %q, want failing %q", s.Phase, s.Error, tc.want)
				}
				if len(h.Steps()) > 0 {
					t.Errorf("steps were done: %v", h.Steps())
				}
			})
		})
	}
}

// A state that nobody knows leads to no step at all, however often it is asked.
func TestUnknownIsAskedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newFake(t)
		host := &vague{Host: h, times: 5}
		l := newLoop(host)
		converge(t, l, build(func(b *plan.Builder) { b.Add(plan.Dir{Path: "/d"}) }), plan.Plan{})
		if got := verbs(h.Steps()); got != "create dir//d" || host.times != 0 {
			t.Errorf("steps: %s", got)
		}
	})
}

// vague does not know the first times.
type vague struct {
	reconcile.Host
	times int
}

func (v *vague) Observe(ctx context.Context, e plan.Entry) (plan.State, error) {
	if v.times > 0 {
		v.times--
		return plan.State{Detail: "the disk is asleep"}, nil
	}
	return v.Host.Observe(ctx, e)
}
