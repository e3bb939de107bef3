// SPDX-License-Identifier: Apache-2.0

package reconcile_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/backend/fake"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// mortal is a host whose agent dies after a number of steps: later calls do nothing and fail.
type mortal struct {
	reconcile.Host
	dead context.Context //nolint:containedctx // ends when the agent dies
}

func (m *mortal) Observe(ctx context.Context, e plan.Entry) (plan.State, error) {
	if m.dead.Err() != nil {
		return plan.State{}, m.dead.Err()
	}
	return m.Host.Observe(ctx, e)
}

func (m *mortal) Do(ctx context.Context, s plan.Step, e plan.Entry) error {
	if m.dead.Err() != nil {
		return m.dead.Err()
	}
	return m.Host.Do(ctx, s, e)
}

// After a crash after any step, including those of a plan upgrade, the next agent reaches the same state
// as an agent that did not crash.
func TestCrashAfterEachStep(t *testing.T) {
	t.Parallel()
	undisturbed, total := "", 0
	synctest.Test(t, func(t *testing.T) {
		h := newFake(t)
		first, second := twoPlans(h)
		converge(t, newLoop(h), first, plan.Plan{})
		converge(t, newLoop(h), second, first)
		undisturbed, total = snapshot(t, h, first, second), len(h.Steps())
	})
	for n := 1; n <= total; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newFake(t)
				first, second := twoPlans(h)
				left := n
				left -= crashing(t, h, first, plan.Plan{}, left)
				converge(t, newLoop(h), first, plan.Plan{})
				if left > 0 {
					crashing(t, h, second, first, left)
				}
				converge(t, newLoop(h), second, first)
				if diff := cmp.Diff(undisturbed, snapshot(t, h, first, second)); diff != "" {
					t.Errorf("machine state (-undisturbed +crashed):\n%s", diff)
				}
				again := newLoop(h)
				converge(t, again, second, first)
				if _, steps := again.Board.All(); steps != 0 {
					t.Errorf("got %d steps in a second run, want none", steps)
				}
				for _, u := range []string{"etcd", "api", "runtime"} {
					if s := h.Starts(u); s > 2 {
						t.Errorf("%s was started %d times, want at most once per plan", u, s)
					}
				}
			})
		})
	}
}

// crashing runs an agent that dies after n steps, and returns how many steps it did.
func crashing(t *testing.T, h *fake.Host, want, before plan.Plan, n int) (steps int) {
	t.Helper()
	life, die := context.WithCancel(t.Context())
	defer die()
	l := newLoop(&mortal{Host: h, dead: life})
	l.AfterStep = func(done int, _ plan.Step) {
		if done == n {
			die()
		}
	}
	_ = l.Converge(life, want, before) // nil when the plan has fewer steps
	_, steps = l.Board.All()
	return steps
}

// twoPlans returns two plans. The second changes a file that etcd reads, drops the static pod and adds a
// unit.
func twoPlans(h *fake.Host) (first, second plan.Plan) {
	first = smallCluster(h)
	second = build(func(b *plan.Builder) {
		for _, e := range first.Entries {
			switch it := e.Item.(type) {
			case plan.StaticPod:
				continue
			case plan.File:
				it.Content = "a: c\n"
				b.Add(it, e.Needs...)
				continue
			}
			b.Add(e.Item, e.Needs...)
		}
		b.Add(unit("proxy"), plan.RefOf(unit("api")))
	})
	return first, second
}

// snapshot describes the state of the machine as text.
func snapshot(t *testing.T, h *fake.Host, plans ...plan.Plan) string {
	t.Helper()
	out := ""
	for i, p := range plans {
		for _, e := range p.Entries {
			s, err := h.Observe(t.Context(), e)
			out += fmt.Sprintf("%d %s %+v %v\n", i, e.Ref, s, err)
		}
	}
	for _, u := range []string{"etcd", "api", "runtime", "import", "proxy"} {
		out += fmt.Sprintf("%s: %d running\n", u, h.Running(u))
	}
	return out
}
