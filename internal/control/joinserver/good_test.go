// SPDX-License-Identifier: Apache-2.0

package joinserver_test

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/control/joinserver"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/rpc"
)

func TestGoodJoins(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		machine func(*world) *machine
		node    string
		secrets int
	}{
		"worker by its key":        {func(w *world) *machine { return w.machine("127.0.0.20").expected("dev-worker-0") }, "dev-worker-0", 0},
		"control plane by its key": {func(w *world) *machine { return w.machine("127.0.0.11").expected("dev-main-1") }, "dev-main-1", 1},
		"new worker by a token":    {func(w *world) *machine { return w.machine("127.0.0.21").invited(registry.TokenSpec{Pool: "worker"}) }, "dev-worker-1", 0},
		"named worker by a token": {func(w *world) *machine {
			return w.machine("127.0.0.22").invited(registry.TokenSpec{Node: "dev-worker-0"})
		}, "dev-worker-0", 0},
		"control plane by a token": {func(w *world) *machine { return w.machine("127.0.0.12").invited(registry.TokenSpec{Pool: "main"}) }, "dev-main-2", 1},
		"known machine, odd token": {func(w *world) *machine {
			m := w.machine("127.0.0.23").expected("dev-worker-0")
			m.token = "x"
			return m
		}, "dev-worker-0", 0},
		"older version, right name": {func(w *world) *machine {
			m := w.machine("127.0.0.24").expected("dev-worker-0")
			m.version, m.node = "1.33.0", "dev-worker-0"
			return m
		}, "dev-worker-0", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, rpc.Limits{})
			m := tc.machine(w)
			g := m.join(t)
			if g.Ticket.Plan.Node != tc.node || len(g.Secrets) != tc.secrets || len(g.Certificates) != 2 || g.Endpoint != w.endpoint {
				t.Errorf("granted node %q, %d secrets, %d certificates at %s", g.Ticket.Plan.Node, len(g.Secrets), len(g.Certificates), g.Endpoint)
			}
			for _, s := range g.Secrets {
				if string(s.Content) != canary {
					t.Errorf("secret %s came as %q", s.Path, s.Content)
				}
			}
			again := m.join(t)
			if !reflect.DeepEqual(g.Ticket, again.Ticket) || !reflect.DeepEqual(g.Secrets, again.Secrets) {
				t.Errorf("the second time it was let in as %+v, before as %+v", again.Ticket, g.Ticket)
			}
			n, found, err := w.registry.ByKey(t.Context(), m.pin())
			if err != nil || !found || n.Name != tc.node || n.Address != m.address {
				t.Errorf("record: %+v, %v, %v", n, found, err)
			}
			var reasons []joinserver.Reason
			for _, e := range w.audit() {
				reasons = append(reasons, e.Reason)
			}
			want := []joinserver.Reason{joinserver.Granted, joinserver.Certified, joinserver.Certified}
			if diff := cmp.Diff(append(want, want...), reasons); diff != "" {
				t.Errorf("audit (-want +got):\n%s", diff)
			}
		})
	}
}
