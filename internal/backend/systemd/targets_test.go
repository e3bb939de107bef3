// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/backend/hosttest"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// The handle is reached when the agent says so and at no other time; a new agent leaves it, and a second unit is shown by it.
func TestInsideHandles(t *testing.T) {
	inside(t)
	b := newBed(t)
	h := b.host(t)
	t.Cleanup(func() {
		for _, target := range []string{h.nodeTarget(), b.conf.Prefix + "cluster.target"} {
			_ = os.Remove(filepath.Join(UnitDir, target))
		}
	})
	active := func(h *Host, want string) {
		t.Helper()
		for _, target := range []string{h.nodeTarget(), b.conf.Prefix + "cluster.target"} {
			if s, err := h.bus.read(t.Context(), target); err != nil || s.active != want {
				t.Errorf("%s is %q, want %q: %v", target, s.active, want, err)
			}
		}
	}
	say := func(h *Host, works bool) {
		t.Helper()
		for _, do := range []func() error{
			func() error { return h.NodeWorks(t.Context(), works) }, func() error { return h.ClusterWorks(t.Context(), works) },
		} {
			if err := do(); err != nil {
				t.Fatal(err)
			}
		}
	}
	converge(t, h, hosttest.RealUnit(b.dir, "one", hosttest.Behaviour{Ready: plan.ProbeTCP}))
	active(h, "inactive")
	say(h, false) // what was never reached need not be left
	active(h, "inactive")
	say(h, true)
	say(h, true)
	active(h, "active")
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	next := b.host(t)
	active(next, "active")
	say(next, false)
	active(next, "inactive")
	converge(t, next, hosttest.RealUnit(b.dir, "two", hosttest.Behaviour{Ready: plan.ProbeTCP}))
	say(next, true)
	active(next, "active")
	props, err := next.bus.now().GetUnitPropertiesContext(t.Context(), next.nodeTarget())
	if err != nil {
		t.Fatal(err)
	}
	wants, _ := props["Wants"].([]string)
	for _, unit := range []string{"one", "two"} {
		if !strings.Contains(strings.Join(wants, " "), b.conf.Prefix+unit+".service") {
			t.Errorf("it wants %v, and not %s", wants, unit)
		}
	}
}
