// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/slipway-project/slipway/internal/backend/hosttest"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// What has become of a unit's record does not take away what guards its data: what dies is not started over the hole, neither
// before the plan has said anew how it runs nor after.
func TestGuardOutlivesTheRecord(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(path string) error{
		"damaged": func(p string) error { return errors.Join(os.Truncate(p, 20), os.Truncate(p+".prev", 20)) },
		"gone":    func(p string) error { return errors.Join(os.Remove(p), os.Remove(p+".prev")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			u, data := hosttest.Guarded(t, b.dir)
			h := b.host(t)
			do(t, h, plan.Create, u)
			await(t, h, u)
			pid := status(t, h, u.Name).PID
			h = handOver(t, b, h, func() {
				if err := spoil(h.recordPath(u.Name)); err != nil {
					t.Fatal(err)
				}
			})
			if err := os.Rename(data, data+".away"); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			eventually(t, "its end", func() bool { return len(live(h, u.Name)) == 0 })
			step, ok := plan.Next(entry(u), state(t, h, u))
			if !ok {
				t.Fatal("the plan has no step for it")
			}
			do(t, h, step.Verb, u)
			eventually(t, "a refusal that names the data", func() bool { return strings.Contains(status(t, h, u.Name).Waiting, "lost data") })
			if n := hosttest.RealStarts(b.dir, u.Name); n != 1 {
				t.Errorf("%d starts, want 1", n)
			}
			if err := os.Rename(data+".away", data); err != nil {
				t.Fatal(err)
			}
			await(t, h, u)
			if n := hosttest.RealStarts(b.dir, u.Name); n != 2 {
				t.Errorf("%d starts after the data came back, want 2", n)
			}
		})
	}
}
