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

// The targets are active exactly when the agent says so. A new agent leaves them as they are, and later
// units are added to them.
func TestInsideTargets(t *testing.T) {
	inside(t)
	b := newBed(t)
	h := b.host(t)
	t.Cleanup(func() {
		for _, target := range []string{h.nodeTarget(), b.conf.Prefix + "cluster.target"} {
			_ = os.Remove(filepath.Join(unitDir, target))
		}
	})
	active := func(h *Host, want string) {
		t.Helper()
		for _, target := range []string{h.nodeTarget(), b.conf.Prefix + "cluster.target"} {
			if s, err := h.bus.read(t.Context(), target); err != nil || s.active != want {
				t.Errorf("%s: got %q, want %q: %v", target, s.active, want, err)
			}
		}
	}
	set := func(h *Host, ready bool) {
		t.Helper()
		for _, do := range []func() error{
			func() error { return h.SetNodeReady(t.Context(), ready) }, func() error { return h.SetClusterReady(t.Context(), ready) },
		} {
			if err := do(); err != nil {
				t.Fatal(err)
			}
		}
	}
	converge(t, h, hosttest.RealUnit(b.dir, "one", hosttest.Behaviour{Ready: plan.ProbeTCP}))
	active(h, "inactive")
	set(h, false) // never active: nothing to stop
	active(h, "inactive")
	set(h, true)
	set(h, true)
	active(h, "active")
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	next := b.host(t)
	active(next, "active")
	set(next, false)
	active(next, "inactive")
	converge(t, next, hosttest.RealUnit(b.dir, "two", hosttest.Behaviour{Ready: plan.ProbeTCP}))
	set(next, true)
	active(next, "active")
	props, err := next.bus.now().GetUnitPropertiesContext(t.Context(), next.nodeTarget())
	if err != nil {
		t.Fatal(err)
	}
	wants, _ := props["Wants"].([]string)
	for _, unit := range []string{"one", "two"} {
		if !strings.Contains(strings.Join(wants, " "), b.conf.Prefix+unit+".service") {
			t.Errorf("got Wants %v, want it to contain %s", wants, unit)
		}
	}
}
