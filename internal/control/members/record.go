// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/membership"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/wait"
)

// recordName is the name of the membership lease's record.
const recordName = "etcd"

// leaseName is how messages to users call the membership lease.
const leaseName = "the membership lease"

type phase string

const (
	taken    phase = "taken"    // a join holds the lease; whether it has added its learner is unknown
	added    phase = "added"    // its learner is a member
	leaving  phase = "leaving"  // the node is being removed from etcd
	clearing phase = "clearing" // what the join began is being undone: its learner must not be promoted any more
)

// record is what all control planes know about the changes of etcd's members.
type record struct {
	Holder *holder `json:"holder,omitempty"` // nil: the lease is free
	// Known is the last member ID of each node, in hex. If that member was removed, the node's data is stale.
	Known map[string]string `json:"known,omitempty"`
}

type holder struct {
	Node    string  `json:"node"`
	Key     pin.Pin `json:"key,omitempty"`
	PeerURL string  `json:"peerURL,omitempty"`
	Member  string  `json:"member,omitempty"` // hex
	Discard bool    `json:"discard,omitempty"`
	Phase   phase   `json:"phase"`
	// For people, and so that each renewal writes another version: the clocks of two machines are never compared.
	Since   time.Time `json:"since"`
	Renewed time.Time `json:"renewed"`
}

func (h *holder) is(node admission.Node) bool {
	return h != nil && h.Node == node.Name && h.Key == node.Key
}

func (h *holder) joins() bool { return h != nil && (h.Phase == taken || h.Phase == added) }

// owns reports whether the learner is the holder's: by its ID, or by its address while the record has no ID yet.
func (h *holder) owns(l membership.Member) bool {
	return h != nil && l.Learner && (h.Member == membership.Hex(l.ID) || h.PeerURL != "" && h.PeerURL == l.PeerURL)
}

func (h *holder) String() string {
	what := "which joins"
	switch h.Phase {
	case leaving:
		what = "which leaves"
	case clearing:
		what = "whose join is being undone"
	}
	return fmt.Sprintf("%s, %s since %s", h.Node, what, h.Since.UTC().Format(time.TimeOnly))
}

func (h *holder) wait() *wait.For {
	return &wait.For{What: leaseName, Who: h.String(), Since: h.Since}
}

// snapshot is the record and the version with which it was read.
type snapshot struct {
	record
	version string
}

func (s *snapshot) take(node admission.Node, peerURL string, p phase, now time.Time) {
	s.Holder = &holder{Node: node.Name, Key: node.Key, PeerURL: peerURL, Phase: p, Since: now}
}

// sighting is the progress of the lease's holder, and when this machine first saw it there.
type sighting struct {
	progress string // node, key, phase and member ID
	since    time.Time
}

func (m *Manager) load(ctx context.Context) (snapshot, error) {
	var s snapshot
	var err error
	if s.version, err = m.lease.Load(ctx, &s.record); err != nil {
		return snapshot{}, err
	}
	if s.Known == nil {
		s.Known = map[string]string{}
	}
	m.noteProgress(s)
	return s, nil
}

// save writes the record and renews the lease. It fails with lease.ErrLost if another machine was first. After any error the caller
// must load the record again.
func (m *Manager) save(ctx context.Context, s *snapshot) error {
	if s.Holder != nil {
		s.Holder.Renewed = m.now()
	}
	version, err := m.lease.Save(ctx, s.version, record{Holder: s.Holder, Known: maps.Clone(s.Known)})
	if err != nil {
		return err
	}
	s.version = version
	m.noteProgress(*s)
	return nil
}

func (m *Manager) noteProgress(s snapshot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	progress := ""
	if h := s.Holder; h != nil {
		progress = fmt.Sprint(h.Node, " ", h.Key, " ", h.Phase, " ", h.Member)
	}
	if progress != m.seen.progress || m.seen.since.IsZero() {
		m.seen = sighting{progress, m.now()}
	}
}

// left returns the time until the lease expires, if it is not renewed.
func (m *Manager) left(s snapshot) time.Duration {
	life := leaseLife
	if s.Holder != nil && s.Holder.Phase == clearing {
		life = clearingLife
	}
	return m.lease.Left(s.version, life)
}

// release frees the lease, if it is held.
func (m *Manager) release(ctx context.Context, s *snapshot) error {
	if s.Holder == nil {
		return nil
	}
	s.Holder = nil
	return m.save(ctx, s)
}

// clear removes the learner of a holder that no longer renews the lease, and frees the lease. It first records that it does so: from
// then on no control plane promotes the learner. It removes learners only.
func (m *Manager) clear(ctx context.Context, s *snapshot) error {
	m.log.Info("clearing the membership lease", "node", s.Holder.Node, "phase", string(s.Holder.Phase), "member", s.Holder.Member)
	h := *s.Holder
	h.Phase = clearing
	s.Holder = &h
	if err := m.save(ctx, s); err != nil {
		return fmt.Errorf("clear membership lease of %s: %w", h.Node, err)
	}
	for range 5 { // usually one learner; two if an AddLearner was delayed
		all, err := m.etcd.Members(ctx)
		if err != nil {
			return fmt.Errorf("clear membership lease of %s: %w", h.Node, err)
		}
		var dead []uint64
		for _, l := range all {
			if h.owns(l) {
				dead = append(dead, l.ID)
			}
		}
		if len(dead) == 0 {
			return m.release(ctx, s)
		}
		if err := m.removeLearner(ctx, all, dead); err != nil {
			return fmt.Errorf("clear membership lease of %s: %w", h.Node, err)
		}
	}
	return fmt.Errorf("clear membership lease of %s: new learners of it appear again and again", h.Node)
}

// removeLearner removes one of the dead learners.
func (m *Manager) removeLearner(ctx context.Context, all []membership.Member, dead []uint64) error {
	all, err := m.health(ctx, all)
	if err != nil {
		return err
	}
	c := membership.Next(all, membership.Wanted{Dead: dead})
	if c.Do != membership.Remove {
		return fmt.Errorf("remove an abandoned learner: %s; %s", c.Reason, c.Who)
	}
	if err := m.etcd.Remove(ctx, c.ID); err != nil && !errors.Is(err, membership.ErrNotFound) {
		return err
	}
	m.log.Info("learner removed from etcd", "member", membership.Hex(c.ID), "peer", c.PeerURL, "why", c.Reason)
	return nil
}

// orphans returns the learners that the holder does not own and that no lease has named for the grace period.
func (m *Manager) orphans(all []membership.Member, h *holder) []uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	still := map[uint64]bool{}
	var dead []uint64
	for _, l := range all {
		if !l.Learner || h.owns(l) {
			continue
		}
		still[l.ID] = true
		if m.unclaimed[l.ID].IsZero() {
			m.unclaimed[l.ID] = now
		}
		if now.Sub(m.unclaimed[l.ID]) >= grace {
			dead = append(dead, l.ID)
		}
	}
	maps.DeleteFunc(m.unclaimed, func(id uint64, _ time.Time) bool { return !still[id] })
	return dead
}
