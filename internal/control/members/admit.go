// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/slipway-project/slipway/internal/control/lease"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/membership"
	"github.com/slipway-project/slipway/internal/core/wait"
)

// joiner is a control plane on its way.
type joiner struct {
	admission.Node
	peer    string
	started bool
}

func (j joiner) candidate() membership.Candidate {
	return membership.Candidate{Name: j.Name, PeerURL: j.peer, Started: j.started}
}

// Admit does what can be done now to make the node a voter, and says how far it is. It is called again, some times a second,
// for as long as the node is heard of; that renews its slot. started: the node says that its etcd runs. Any number of calls, on
// any control plane, may be lost or repeated. An error means that nobody knows; call again.
func (m *Manager) Admit(ctx context.Context, node admission.Node, started bool) (membership.Progress, error) {
	if node.Removing {
		return membership.Progress{}, fmt.Errorf("admit %s to etcd: it is being removed", node.Name)
	}
	peer, err := PeerURL(node)
	if err != nil {
		return membership.Progress{}, err
	}
	answer, err := m.admit(ctx, joiner{node, peer, started})
	if errors.Is(err, lease.ErrLost) {
		answer, err = membership.Progress{Wait: m.since(node.Name, wait.For{What: "the etcd slot", Who: "another control plane, which has just written it"})}, nil
	}
	if err != nil {
		return membership.Progress{}, fmt.Errorf("admit %s to etcd: %w", node.Name, err)
	}
	if answer.Promoted && m.onPromoted != nil {
		m.onPromoted()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if answer.Wait != nil {
		m.waiting[node.Name] = waiting{*answer.Wait, m.now()}
	} else {
		delete(m.waiting, node.Name)
	}
	return answer, nil
}

func (m *Manager) admit(ctx context.Context, j joiner) (membership.Progress, error) {
	s, err := m.load(ctx)
	if err != nil {
		return membership.Progress{}, err
	}
	all, err := m.etcd.Members(ctx)
	if err != nil {
		return membership.Progress{}, err
	}
	own, has := membership.Find(all, "", j.peer)
	if has && !own.Learner && own.Name == j.Name {
		return m.promoted(ctx, s, j, own)
	}
	if later, err := m.turn(ctx, &s, j); later != nil || err != nil {
		return membership.Progress{Wait: later}, err
	}
	if has && own.Learner && (own.Name == "" || own.Name == j.Name) {
		if s.Holder.Member != membership.Hex(own.ID) { // added, and the answer was lost
			return m.grant(ctx, s, j, own.ID, all)
		}
		if !j.started {
			return membership.Progress{Permit: permit(all, own.ID, j), Discard: s.Holder.Discard}, nil
		}
	}
	return m.advance(ctx, s, j, all)
}

// turn takes or renews the slot, or says whose it is.
func (m *Manager) turn(ctx context.Context, s *slot, j joiner) (*wait.For, error) {
	h := s.Holder
	switch {
	case h == nil:
		if until, tired := m.isTired(j.Name); tired {
			return m.since(j.Name, wait.For{What: "its next turn at " + until.UTC().Format(time.TimeOnly), Who: "the clock: it got nowhere for " + patience.String()}), nil
		}
		s.take(j.Node, j.peer, taken, m.now())
		return nil, m.save(ctx, s)
	case !h.is(j.Node) || !h.joins() || h.PeerURL != j.peer:
		if m.left(*s) > 0 {
			return h.wait(), nil
		}
		return h.wait(), m.clear(ctx, s)
	case m.stuck():
		m.log.Warn("a control plane has got nowhere and loses its turn", "node", j.Name, "phase", string(h.Phase), "patience", patience)
		m.mu.Lock()
		m.tired[j.Name] = m.now().Add(penalty)
		m.mu.Unlock()
		return h.wait(), m.clear(ctx, s)
	case m.left(*s) < slotTTL-renewAfter:
		return nil, m.save(ctx, s)
	}
	return nil, nil
}

// advance does the one next change for the holder of the slot.
func (m *Manager) advance(ctx context.Context, s slot, j joiner, all []membership.Member) (membership.Progress, error) {
	asked, err := m.ask(ctx, all)
	if err != nil {
		return membership.Progress{}, err
	}
	c := membership.Next(asked, membership.Wanted{Dead: m.orphans(all, s.Holder), Join: j.candidate()})
	switch c.Do {
	case membership.AddLearner:
		id, all, err := m.etcd.AddLearner(ctx, j.peer)
		if err != nil {
			return m.notNow(j, err)
		}
		m.log.Info("a learner was added to etcd", "node", j.Name, "member", membership.Hex(id), "why", c.Reason)
		return m.grant(ctx, s, j, id, all)
	case membership.Promote:
		if err := m.save(ctx, &s); err != nil { // whoever clears the slot waits from now on: a learner that is to be removed is not made a voter
			return membership.Progress{}, err
		}
		limited, cancel := context.WithTimeout(ctx, slotTTL/2)
		defer cancel()
		if err := m.etcd.Promote(limited, c.ID); err != nil && !errors.Is(err, membership.ErrNotLearner) {
			return m.notNow(j, err)
		}
		m.log.Info("a learner of etcd has become a voter", "node", j.Name, "member", membership.Hex(c.ID), "why", c.Reason)
		return m.promoted(ctx, s, j, membership.Member{ID: c.ID})
	case membership.Remove: // a learner: only Leave asks for more
		m.log.Info("a learner is removed from etcd", "node", j.Name, "member", membership.Hex(c.ID), "why", c.Reason)
		if err := m.etcd.Remove(ctx, c.ID); err != nil && !errors.Is(err, membership.ErrNotFound) {
			return m.notNow(j, err)
		}
		return membership.Progress{Wait: m.since(j.Name, wait.For{What: "a look at etcd's members", Who: "this control plane"})}, nil
	case membership.Done:
		return m.promoted(ctx, s, j, membership.Member{ID: c.ID})
	default:
		return membership.Progress{Wait: m.since(j.Name, wait.For{What: c.What + " (" + c.Reason + ")", Who: c.Who})}, nil
	}
}

// notNow turns what etcd refuses for now into a wait.
func (m *Manager) notNow(j joiner, err error) (membership.Progress, error) {
	later := wait.For{Who: "etcd"}
	switch {
	case errors.Is(err, membership.ErrNotCaughtUp):
		later.What, later.Who = "etcd of "+j.Name+" to catch up with the leader", j.Name
	case errors.Is(err, membership.ErrUnsettled):
		later.What = "etcd's voters to be connected with each other for five seconds"
	case errors.Is(err, membership.ErrBusy):
		later.What = "another learner of etcd, which is promoted or removed first"
	case errors.Is(err, membership.ErrExists), errors.Is(err, membership.ErrNotFound):
		later.What = "another look at etcd's members, which have just changed"
	default:
		return membership.Progress{}, err
	}
	return membership.Progress{Wait: m.since(j.Name, later)}, nil
}

func (m *Manager) isTired(node string) (time.Time, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	until := m.tired[node]
	return until, m.now().Before(until)
}

// since keeps the time at which a node began to wait for the same thing.
func (m *Manager) since(node string, w wait.For) *wait.For {
	m.mu.Lock()
	defer m.mu.Unlock()
	w.Since = m.now()
	if before, ok := m.waiting[node]; ok && before.What == w.What {
		w.Since = before.Since
	}
	return &w
}
