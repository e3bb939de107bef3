// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/control/joinserver"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// pass counts a step, checks the invariants of the machine, and carries out the crash that is due at the step.
func (w *World) pass(a *agent, name string) {
	w.checkMachine(a)
	w.mu.Lock()
	key := a.m.name + " " + name
	w.counts[key]++
	n := w.counts[key]
	w.steps = append(w.steps, Step{a.m.name, name, n})
	if verbose {
		w.noteLocked("%s: step %q #%d", a.m.name, name, n)
	}
	i := slices.IndexFunc(w.armed, func(c *Crash) bool { return c.Machine == a.m.name && c.Name == name && (c.N == 0 || c.N == n) })
	var due *Crash
	if i >= 0 {
		due = w.armed[i]
		w.armed = slices.Delete(w.armed, i, i+1)
		if due.Then != nil {
			w.armed = append(w.armed, due.Then)
		}
		w.noteLocked("%s crashes at %q #%d", a.m.name, name, n)
	}
	w.mu.Unlock()
	if due == nil || w.isOver() {
		return
	}
	a.suffer(due)
}

// checkMachine: a committed machine stays committed, and a free machine holds no credential.
func (w *World) checkMachine(a *agent) {
	a.m.mu.Lock()
	now := a.lock.State()
	before, resetting := a.m.committed, a.m.resetting
	if now.Phase == lock.Committed {
		a.m.committed = now.Cluster
	}
	a.m.mu.Unlock()
	if before != "" && !resetting && (now.Phase != lock.Committed || now.Cluster != before) {
		w.wrong("%s was committed to %s and is %s", a.m.name, before, now)
	}
	if now.Phase != lock.Free {
		return
	}
	if held := credentials(a.root); len(held) > 0 && a.lock.State() == now && !a.dead.Load() {
		w.wrong("%s is free and holds %v", a.m.name, held)
	}
}

// madeOnce: a CA is made once for each claim, even over crashes.
func (m *machine) madeOnce(a *agent, name string, key pin.Pin) {
	claim := a.lock.State().ID + " " + name
	m.mu.Lock()
	before := m.made[claim]
	if m.made == nil {
		m.made = map[string]pin.Pin{}
	}
	m.made[claim] = key
	m.mu.Unlock()
	if before != "" && before != key {
		m.w.wrong("%s made %s twice: %s and %s", m.name, claim, before, key)
	}
}

// checkRecords: no two records share a name, pod CIDR, key or address, and a token admits one key.
func (w *World) checkRecords(c *cluster, item registry.Item) {
	switch item.Kind {
	case "token":
		var t admission.Token
		if err := json.Unmarshal(item.Data, &t); err != nil {
			w.wrong("token %s cannot be read: %v", item.Name, err)
			return
		}
		w.mu.Lock()
		before := c.used[t.ID]
		if t.UsedBy != "" {
			c.used[t.ID] = t.UsedBy
		}
		w.mu.Unlock()
		if before != "" && t.UsedBy != before {
			w.wrong("token %s admitted %s, and now %q", t.ID, before, t.UsedBy)
		}
	case "nodes":
		nodes, err := registry.New(c.store, time.Now).Nodes(context.Background())
		if err != nil {
			w.wrong("the records cannot be read: %v", err)
			return
		}
		seen := map[string]string{}
		for _, n := range nodes {
			shares := []string{"name " + n.Name, "range " + n.PodCIDR.String()}
			if n.Key != "" {
				shares = append(shares, "key "+string(n.Key))
			}
			if n.Address.IsValid() {
				shares = append(shares, "address "+n.Address.String())
			}
			for _, s := range shares {
				if other, ok := seen[s]; ok {
					w.wrong("%s and %s share the %s", other, n.Name, s)
				}
				seen[s] = n.Name
			}
		}
	}
}

// checkMembers: there is at most one learner, and no change of ours loses the quorum.
func (w *World) checkMembers(c *cluster, what string, hadQuorum bool) {
	now := last(c.etcd.History())
	if strings.Count(now, ":learner") > 1 {
		w.wrong("%s: two learners at once: %s", what, now)
	}
	if hadQuorum && !c.hasQuorum() {
		w.wrong("%s loses the quorum: %s", what, now)
	}
}

// hasQuorum tells whether the cluster's etcd has a quorum now.
func (c *cluster) hasQuorum() bool {
	now := last(c.etcd.History())
	for member := range strings.FieldsSeq(now) {
		name, _, _ := strings.Cut(member, ":")
		ctx, cancel := context.WithTimeout(context.Background(), time.Nanosecond)
		_, err := c.etcd.Client(name).Get(ctx, "health")
		cancel()
		if err == nil {
			return true
		}
	}
	return false
}

// heard stores an audit entry of a join service.
func (w *World) heard(e joinserver.Entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.audits = append(w.audits, e)
}

// ready tells whether the machine is a node with all items ready.
func (m *machine) ready() bool {
	a := m.running()
	if a == nil || a.lock.State().Phase != lock.Committed {
		return false
	}
	all, _ := a.board.All()
	seen := false
	for _, s := range all {
		if s.Phase != reconcile.Ready {
			return false
		}
		seen = seen || s.Ref == "unit/kubelet"
	}
	return seen
}

// says returns the machine's status of what is not ready, or nothing.
func (m *machine) says() string {
	a := m.running()
	if a == nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.stopped != nil {
			return m.stopped.Error()
		}
		return ""
	}
	all, _ := a.board.All()
	var text []string
	for _, s := range all {
		if s.Phase != reconcile.Ready && s.What+s.Error != "" {
			text = append(text, s.Ref+" "+string(s.Phase)+": "+s.What+s.Error+" ("+s.Who+")")
		}
	}
	return strings.Join(text, "; ")
}

// maxSilence is how long a machine that is not done may have no status, as between two items.
const maxSilence = 5 * time.Second

// checkVoices: every machine that is not done reports what it waits for.
func (w *World) checkVoices() {
	for _, m := range w.order {
		m.mu.Lock()
		on := m.on && !(m.returning && m.agent == nil)
		m.mu.Unlock()
		if !on || m.ready() || m.says() != "" {
			m.quiet = time.Time{}
			continue
		}
		if m.quiet.IsZero() {
			m.quiet = time.Now()
		}
		if time.Since(m.quiet) > maxSilence {
			m.quiet = time.Now().Add(time.Hour)
			state := "no agent"
			if a := m.running(); a != nil {
				all, _ := a.board.All()
				state = a.lock.State().String()
				for _, s := range all {
					state += "; " + s.Ref + " " + string(s.Phase)
				}
			}
			w.wrong("%s is not done and has no status: %s", m.name, state)
		}
	}
}
