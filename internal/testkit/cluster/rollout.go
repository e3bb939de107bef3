// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/slipway-project/slipway/internal/control/lease"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/control/rollout"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/node/rosterfile"
	"github.com/slipway-project/slipway/internal/sleep"
)

// broken is the flag with which no unit starts.
const broken = "broken"

// exchanges is the state of a machine's units that are restarted under the rollout lease; guarded by the machine's mu.
type exchanges struct {
	away     map[string]bool      // units that were stopped for a restart, and have not been healthy since
	unwell   map[string]time.Time // since when a unit is unhealthy
	apiReady time.Time            // when the API server that was started last begins to respond
	lifeless time.Time            // since when the machine has no agent
}

// lifelessAfter is how long an agent may be dead and still hold the rollout lease.
const lifelessAfter = 20 * time.Second

// forget forgets the restarts: what is down now is so because of the story.
func (e *exchanges) forget() { e.away, e.unwell = nil, nil }

// others returns what this control plane knows of the others for its rollout lease, assembled as in cmd/slipway.
func (a *agent) others(c *cluster, doc document) rollout.Cluster {
	servers := func() (all []*machine) {
		r, err := rosterfile.Load(a.root+rosterFile, readCert(a.root+pkiDir+"/join-ca.crt"))
		if err != nil {
			return nil
		}
		for _, at := range r.API {
			if m := a.m.w.at(at.Addr()); m != nil {
				all = append(all, m)
			}
		}
		return all
	}
	peers := rollout.Peers{Etcd: etcd{a, c, doc.Self}, Self: doc.Self, API: func(ctx context.Context, at netip.Addr) string {
		all := servers()
		if len(all) == 0 {
			return "there is no roster that names the API servers"
		}
		i := slices.IndexFunc(all, func(m *machine) bool { return m.address == at })
		if i < 0 {
			return ""
		}
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		if err := (store{a, c, all[i]}).ask(ctx); err != nil {
			return err.Error()
		}
		return ""
	}}
	return rollout.Cluster{
		Self: doc.Self, Several: doc.ControlPlanes > 1, Unwell: peers.Unwell,
		Records: rollout.Replicas(func() []lease.Records {
			ways := []lease.Records{registry.New(store{a, c, a.m}, time.Now)}
			for _, m := range servers() {
				ways = append(ways, registry.New(store{a, c, m}, time.Now))
			}
			return ways
		}),
	}
}

// exchange is the first half of a unit's restart: it stops the unit.
func (h host) exchange(ctx context.Context, u plan.Unit) error {
	h.m.w.checkTurn(h.m, u.Name)
	h.m.mu.Lock()
	if err := h.alive(); err != nil {
		h.m.mu.Unlock()
		return err
	}
	delete(h.m.wanted, u.Name)
	if u.Name == "kube-apiserver" {
		h.m.apiserver = false
	} else if h.m.etcd != "" {
		h.m.etcdIn.etcd.Kill(h.m.etcd)
		h.m.etcd, h.m.etcdIn = "", nil
	}
	if h.m.away == nil {
		h.m.away = map[string]bool{}
	}
	h.m.away[u.Name] = true
	h.m.changeLocked()
	h.m.mu.Unlock()
	h.pass("exchange unit/" + u.Name)
	return sleep.For(ctx, time.Duration(h.m.w.intn(5000))*time.Millisecond)
}

// downLocked tells whether a unit has been unhealthy for so long that a restart makes nothing worse.
func (m *machine) downLocked(unit string, ready bool, after time.Duration) bool {
	if m.unwell == nil {
		m.unwell = map[string]time.Time{}
	}
	if ready {
		delete(m.unwell, unit)
		return false
	}
	if m.unwell[unit].IsZero() {
		m.unwell[unit] = time.Now()
	}
	return time.Since(m.unwell[unit]) > after
}

// wellLocked tells whether a unit is running and starts properly. A unit that waits for another one is healthy.
func (m *machine) wellLocked(unit string) bool {
	if unit == "etcd" {
		return m.etcd != ""
	}
	return m.apiserver && !time.Now().Before(m.apiReady) && !slices.Contains(m.wanted[unit].Args, broken)
}

// checkTurn is called before a unit is restarted: no control plane restarts a healthy unit while another one restarts.
func (w *World) checkTurn(m *machine, unit string) {
	m.mu.Lock()
	works, in := m.wellLocked(unit), m.committed
	m.mu.Unlock()
	w.note("%s restarts %s", m.name, unit)
	for _, o := range w.order {
		if o == m || !works {
			continue
		}
		if other := o.isAway(in); other != "" {
			w.wrong("%s restarts %s while %s of %s is down", m.name, unit, other, o.name)
		}
	}
}

// isAway returns a unit that this control plane of a cluster is restarting now.
func (m *machine) isAway(in string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.committed != in {
		return ""
	}
	if m.agent == nil && time.Since(m.lifeless) > lifelessAfter {
		m.forget() // its rollout lease has expired, and the others have waited
	}
	for _, unit := range slices.Sorted(maps.Keys(m.away)) {
		if !m.wellLocked(unit) {
			return unit
		}
	}
	return ""
}

// serves returns nil if the machine's API server responds, which needs etcd.
func (m *machine) serves(ctx context.Context, c *cluster, node string) error {
	m.mu.Lock()
	up := m.wellLocked("kube-apiserver")
	m.mu.Unlock()
	if !up {
		return fmt.Errorf("%w: connection refused", errNoAPI)
	}
	if _, err := c.etcd.Client(node).Get(ctx, "health"); err != nil {
		return fmt.Errorf("%w: %w", errNoAPI, err)
	}
	return nil
}
