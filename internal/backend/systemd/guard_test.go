// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/backend/hosttest"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// What has become of a unit's record does not take away what guards its data: what dies is not started over the hole, neither
// before the plan has said anew how it runs nor after.
func TestInsideGuardOutlivesTheRecord(t *testing.T) {
	inside(t)
	for name, spoil := range map[string]func(path string) error{
		"damaged":     func(p string) error { return errors.Join(os.Truncate(p, 20), os.Truncate(p+".prev", 20)) },
		"gone":        func(p string) error { return errors.Join(os.Remove(p), os.Remove(p+".prev")) },
		"newest gone": os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			u, data := hosttest.Guarded(t, b.dir)
			first := b.host(t)
			converge(t, first, u)
			was := pid(t, first, u.Name)
			if err := errors.Join(first.Close(), spoil(recordPath(b.conf.StateDir, u.Name))); err != nil {
				t.Fatal(err)
			}
			h := b.host(t)
			if _, err := h.Observe(t.Context(), entry(u)); err != nil { // the agent looks, and does nothing yet
				t.Fatal(err)
			}
			if now := pid(t, h, u.Name); now != was {
				t.Fatalf("process %d, was %d: the new agent has restarted it", now, was)
			}
			if err := os.Rename(data, data+".away"); err != nil {
				t.Fatal(err)
			}
			crash(t, h, u.Name)
			eventually(t, "a start that is refused", func() bool {
				n, ok := h.units.Get(u.Name).lastStart()
				return ok && n.Refused != ""
			})
			refused(t, h, u)
			if n := hosttest.RealStarts(b.dir, u.Name); n != 1 {
				t.Errorf("%d starts, want 1", n)
			}
			if err := os.Rename(data+".away", data); err != nil {
				t.Fatal(err)
			}
			converge(t, h, u)
			if n := hosttest.RealStarts(b.dir, u.Name); n != 2 {
				t.Errorf("%d starts after the data came back, want 2", n)
			}
		})
	}
}

// refused does the plan's step, if there is one, and sees the unit refused for its data.
func refused(t *testing.T, h *Host, u plan.Unit) {
	t.Helper()
	s, err := h.Observe(t.Context(), entry(u))
	if err != nil {
		t.Fatal(err)
	}
	if step, ok := plan.Next(entry(u), s); ok {
		if err := h.Do(t.Context(), step, entry(u)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "a refusal that names the data", func() bool {
		n, ok := h.units.Get(u.Name).lastStart()
		return ok && strings.Contains(n.Refused, "lost data")
	})
}
