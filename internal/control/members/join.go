// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/control/lease"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/membership"
	"github.com/slipway-project/slipway/internal/core/wait"
)

// joiner is a control plane that joins etcd.
type joiner struct {
	admission.Node
	peer    string
	started bool
}

// Admit does what can be done now to make the node a voter, and returns how far it is. The caller repeats it several times a second
// for as long as the node asks; that renews the node's lease. started means that the node's etcd runs. Calls may be lost or repeated,
// on any control plane. After an error the state is unknown: call again.
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
		answer, err = membership.Progress{Wait: m.waitSince(node.Name, wait.For{What: leaseName, Who: "another control plane, which has just written it"})}, nil
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
		return m.promoted(ctx, s, j, own.ID)
	}
	if later, err := m.acquire(ctx, &s, j); later != nil || err != nil {
		return membership.Progress{Wait: later}, err
	}
	if has && own.Learner && (own.Name == "" || own.Name == j.Name) {
		if s.Holder.Member != membership.Hex(own.ID) { // the answer to AddLearner was lost
			return m.grant(ctx, s, j, own.ID, all)
		}
		if !j.started {
			return membership.Progress{Permit: permit(all, own.ID, j), Discard: s.Holder.Discard}, nil
		}
	}
	return m.advance(ctx, s, j, all)
}

// acquire acquires or renews the lease for the node. If that is not possible now, it returns what to wait for.
func (m *Manager) acquire(ctx context.Context, s *snapshot, j joiner) (*wait.For, error) {
	h := s.Holder
	m.mu.Lock()
	until, stuck := m.penalized[j.Name], m.now().Sub(m.seen.since) > patience
	m.mu.Unlock()
	switch {
	case h == nil:
		if m.now().Before(until) {
			return m.waitSince(j.Name, wait.For{What: leaseName + ", which others may acquire until " + until.UTC().Format(time.TimeOnly), Who: j.Name + ", which made no progress for " + patience.String()}), nil
		}
		s.take(j.Node, j.peer, taken, m.now())
		return nil, m.save(ctx, s)
	case !h.is(j.Node) || !h.joins() || h.PeerURL != j.peer:
		if m.left(*s) > 0 {
			return h.wait(), nil
		}
		return h.wait(), m.clear(ctx, s)
	case stuck:
		m.log.Warn("a joining control plane makes no progress and loses the membership lease", "node", j.Name, "phase", string(h.Phase), "patience", patience)
		m.mu.Lock()
		m.penalized[j.Name] = m.now().Add(penalty)
		m.mu.Unlock()
		return h.wait(), m.clear(ctx, s)
	case m.left(*s) < leaseLife-renewAfter:
		return nil, m.save(ctx, s)
	}
	return nil, nil
}

// advance makes the next change for the holder of the lease.
func (m *Manager) advance(ctx context.Context, s snapshot, j joiner, all []membership.Member) (membership.Progress, error) {
	all, err := m.health(ctx, all)
	if err != nil {
		return membership.Progress{}, err
	}
	candidate := membership.Candidate{Name: j.Name, PeerURL: j.peer, Started: j.started}
	c := membership.Next(all, membership.Wanted{Dead: m.orphans(all, s.Holder), Join: candidate})
	switch c.Do {
	case membership.AddLearner:
		id, all, err := m.etcd.AddLearner(ctx, j.peer)
		if err != nil {
			return m.refused(j, err)
		}
		m.log.Info("learner added to etcd", "node", j.Name, "member", membership.Hex(id), "why", c.Reason)
		return m.grant(ctx, s, j, id, all)
	case membership.Promote:
		if err := m.save(ctx, &s); err != nil { // renewed, the lease cannot be cleared during the promotion
			return membership.Progress{}, err
		}
		limited, cancel := context.WithTimeout(ctx, leaseLife/2)
		defer cancel()
		if err := m.etcd.Promote(limited, c.ID); err != nil && !errors.Is(err, membership.ErrNotLearner) {
			return m.refused(j, err)
		}
		m.log.Info("learner promoted to voter", "node", j.Name, "member", membership.Hex(c.ID), "why", c.Reason)
		return m.promoted(ctx, s, j, c.ID)
	case membership.Remove: // only a learner: Next removes a voter only for Leave
		m.log.Info("removing a learner from etcd", "node", j.Name, "member", membership.Hex(c.ID), "why", c.Reason)
		if err := m.etcd.Remove(ctx, c.ID); err != nil && !errors.Is(err, membership.ErrNotFound) {
			return m.refused(j, err)
		}
		return membership.Progress{Wait: m.waitSince(j.Name, wait.For{What: "the removal of an abandoned learner", Who: "this control plane"})}, nil
	case membership.Done:
		return m.promoted(ctx, s, j, c.ID)
	default:
		return membership.Progress{Wait: m.waitSince(j.Name, wait.For{What: c.What + " (" + c.Reason + ")", Who: c.Who})}, nil
	}
}

// refused turns a temporary refusal of etcd into a wait. It returns other errors unchanged.
func (m *Manager) refused(j joiner, err error) (membership.Progress, error) {
	later := wait.For{Who: "etcd"}
	switch {
	case errors.Is(err, membership.ErrNotCaughtUp):
		later.What, later.Who = "etcd of "+j.Name+" to catch up with the leader", j.Name
	case errors.Is(err, membership.ErrUnsettled):
		later.What = unsettled
	case errors.Is(err, membership.ErrBusy):
		later.What = "another learner of etcd to be promoted or removed"
	case errors.Is(err, membership.ErrExists), errors.Is(err, membership.ErrNotFound):
		later.What = "the new list of etcd's members, which have just changed"
	default:
		return membership.Progress{}, err
	}
	return membership.Progress{Wait: m.waitSince(j.Name, later)}, nil
}

// unsettled is what to wait for after membership.ErrUnsettled.
const unsettled = "etcd's voters to be connected with each other for five seconds"

// waitSince fills in the time at which the node began to wait for the same thing.
func (m *Manager) waitSince(node string, w wait.For) *wait.For {
	m.mu.Lock()
	defer m.mu.Unlock()
	w.Since = m.now()
	if before, ok := m.waiting[node]; ok && before.What == w.What {
		w.Since = before.Since
	}
	return &w
}

// grant records the member ID of the node before it returns the permit with which the node's etcd may start.
func (m *Manager) grant(ctx context.Context, s snapshot, j joiner, id uint64, all []membership.Member) (membership.Progress, error) {
	hex, before := membership.Hex(id), s.Known[j.Name]
	s.Holder.Phase, s.Holder.Member = added, hex
	s.Holder.Discard = before != "" && before != hex
	s.Known[j.Name] = hex
	if err := m.save(ctx, &s); err != nil {
		return membership.Progress{}, err
	}
	return membership.Progress{Permit: permit(all, id, j), Discard: s.Holder.Discard}, nil
}

// permit returns the environment of an etcd that joins. etcd ignores the last line; the node compares permits by it.
func permit(all []membership.Member, id uint64, j joiner) []byte {
	var cluster []string
	for _, one := range all {
		name := one.Name
		if one.ID == id {
			name = j.Name
		}
		if name == "" { // a voter that never started: etcd compares addresses, but needs some name
			name = membership.Hex(one.ID)
		}
		cluster = append(cluster, name+"="+one.PeerURL)
	}
	slices.Sort(cluster)
	return fmt.Appendf(nil, "ETCD_INITIAL_CLUSTER=%s\nETCD_INITIAL_CLUSTER_STATE=existing\nSLIPWAY_ETCD_MEMBER=%s\n", strings.Join(cluster, ","), membership.Hex(id))
}

// promoted records the node's member ID and frees its lease. A failed write does not change that the node is a voter: the lease
// expires.
func (m *Manager) promoted(ctx context.Context, s snapshot, j joiner, id uint64) (membership.Progress, error) {
	hex := membership.Hex(id)
	mine := s.Holder.is(j.Node) && s.Holder.joins()
	if mine || s.Known[j.Name] != hex {
		if mine {
			s.Holder = nil
		}
		s.Known[j.Name] = hex
		if err := m.save(ctx, &s); err != nil {
			m.log.Warn("membership lease not released; it expires", "node", j.Name, "err", err)
		}
	}
	return membership.Progress{Promoted: true}, nil
}
