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

// pass counts a step, looks whether all that must always hold does, and lets the machine crash if that is due here.
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

// checkMachine: what is committed stays so, and nobody who is free is somebody.
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
		w.wrong("%s belongs to nobody and holds %v", a.m.name, held)
	}
}

// madeOnce: the CA of one claim is one CA, whatever falls meanwhile.
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

// checkRecords: no two records share what is one machine's, and a token lets one key in.
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
			w.wrong("token %s let in %s, and now %q", t.ID, before, t.UsedBy)
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

// checkMembers: one change at a time, and never the quorum's end by us.
func (w *World) checkMembers(c *cluster, what string, hadQuorum bool) {
	now := last(c.etcd.History())
	if strings.Count(now, ":learner") > 1 {
		w.wrong("%s: two learners at once: %s", what, now)
	}
	if hadQuorum && !c.hasQuorum() {
		w.wrong("%s: the quorum is lost by it: %s", what, now)
	}
}

// hasQuorum tells whether the cluster's etcd agrees on anything now.
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

// heard keeps what join services have decided.
func (w *World) heard(e joinserver.Entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.audits = append(w.audits, e)
}

// ready tells whether a machine is a node with nothing left to do.
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

// says is what the machine tells of itself that is not ready; empty: it is silent.
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

// maxSilence is how long a machine may have nothing to say: a moment between two words.
const maxSilence = 5 * time.Second

// checkVoices: every machine that is not done says what it waits for.
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
			w.wrong("%s is not done and says nothing: %s", m.name, state)
		}
	}
}
