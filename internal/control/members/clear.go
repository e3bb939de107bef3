// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"errors"
	"fmt"

	"github.com/slipway-project/slipway/internal/core/membership"
)

// clear takes back what a holder has begun that is not heard of any more, and frees the slot. It first writes down that it does:
// from then on nobody promotes the learner. Only learners are removed.
func (m *Manager) clear(ctx context.Context, s *slot) error {
	m.log.Info("the etcd slot is cleared", "node", s.Holder.Node, "phase", string(s.Holder.Phase), "member", s.Holder.Member)
	h := *s.Holder
	h.Phase = clearing
	s.Holder = &h
	if err := m.save(ctx, s); err != nil {
		return fmt.Errorf("clear the etcd slot of %s: %w", h.Node, err)
	}
	for range 5 { // one learner, or two when somebody was slow
		all, err := m.etcd.Members(ctx)
		if err != nil {
			return fmt.Errorf("clear the etcd slot of %s: %w", h.Node, err)
		}
		var dead []uint64
		for _, l := range all {
			if h.owns(l) {
				dead = append(dead, l.ID)
			}
		}
		if len(dead) == 0 {
			s.Holder = nil
			return m.save(ctx, s)
		}
		if err := m.bury(ctx, all, dead); err != nil {
			return fmt.Errorf("clear the etcd slot of %s: %w", h.Node, err)
		}
	}
	return fmt.Errorf("clear the etcd slot of %s: its learners come back", h.Node)
}

// bury removes one dead learner.
func (m *Manager) bury(ctx context.Context, all []membership.Member, dead []uint64) error {
	asked, err := m.ask(ctx, all)
	if err != nil {
		return err
	}
	c := membership.Next(asked, membership.Wanted{Dead: dead})
	if c.Do != membership.Remove {
		return fmt.Errorf("remove a learner nobody looks after: %s; %s", c.Reason, c.Who)
	}
	if err := m.etcd.Remove(ctx, c.ID); err != nil && !errors.Is(err, membership.ErrNotFound) {
		return err
	}
	m.log.Info("a learner was removed from etcd", "member", membership.Hex(c.ID), "peer", c.PeerURL, "why", c.Reason)
	return nil
}

// orphans are the learners that are not the holder's, and have not been anybody's for the grace.
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
		if m.lonely[l.ID].IsZero() {
			m.lonely[l.ID] = now
		}
		if now.Sub(m.lonely[l.ID]) >= grace {
			dead = append(dead, l.ID)
		}
	}
	for id := range m.lonely {
		if !still[id] {
			delete(m.lonely, id)
		}
	}
	return dead
}
