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
	"github.com/slipway-project/slipway/internal/sleep"
)

// ErrRefused says that a node cannot leave as things are.
var ErrRefused = errors.New("refused")

const (
	leaveEvery = 200 * time.Millisecond
	hush       = 4 * time.Second // for voters that are silent: an election, or a busy moment, takes no longer
)

// Leave takes a node out of etcd for good. It waits for its turn until ctx ends, and then says what it waited for. It is
// refused (ErrRefused) when those who stay would have no quorum. A node that is no member has left already.
func (m *Manager) Leave(ctx context.Context, node string) error {
	told := ""
	for {
		wait, err := m.leave(ctx, node)
		switch {
		case errors.Is(err, lease.ErrLost):
		case err != nil:
			return fmt.Errorf("take %s out of etcd: %w", node, err)
		case wait == "":
			return nil
		case wait != told:
			m.log.Info("a node waits to leave etcd", "node", node, "for", wait)
			told = wait
		}
		if sleep.For(ctx, leaveEvery) != nil {
			return fmt.Errorf("take %s out of etcd: still waiting for %s: %w", node, told, ctx.Err())
		}
	}
}

// leave is one try. It returns what it waits for; nothing when the node is no member any more.
func (m *Manager) leave(ctx context.Context, node string) (wait string, err error) {
	s, err := m.load(ctx)
	if err != nil {
		return "", err
	}
	mine := s.Holder != nil && s.Holder.Node == node // its own join ends here
	if s.Holder != nil && !mine {
		if m.left(s) > 0 {
			return "the etcd slot: " + s.Holder.String(), nil
		}
		return "the etcd slot: " + s.Holder.String(), m.clear(ctx, &s)
	}
	c, err := m.mayLeave(ctx, node)
	switch {
	case err != nil:
		return "", err
	case c.Do == membership.Done:
		return "", m.release(ctx, &s)
	case c.Do == membership.Wait:
		return c.What + " (" + c.Reason + ")", nil
	}
	s.take(admission.Node{Name: node}, c.PeerURL, leaving, m.now())
	s.Holder.Member = membership.Hex(c.ID)
	s.Known[node] = s.Holder.Member
	if err := m.save(ctx, &s); err != nil {
		return "", err
	}
	wait, err = m.depart(ctx, node)
	if done := m.release(ctx, &s); done != nil { // after its own departure a machine cannot write any more: the slot expires
		m.log.Warn("the etcd slot was not freed; it expires by itself", "node", node, "err", done)
	}
	return wait, err
}

// depart removes the member; the slot is held. It looks again, for only now nobody else changes anything.
func (m *Manager) depart(ctx context.Context, node string) (wait string, err error) {
	ctx, cancel := context.WithTimeout(ctx, slotTTL/2)
	defer cancel()
	c, err := m.mayLeave(ctx, node)
	switch {
	case err != nil:
		return "", err
	case c.Do == membership.Done:
		return "", nil
	case c.Do == membership.Wait:
		return c.What + " (" + c.Reason + ")", nil
	}
	if err := m.etcd.MoveLeader(ctx, c.ID); err != nil {
		return "", err
	}
	err = m.etcd.Remove(ctx, c.ID)
	switch {
	case errors.Is(err, membership.ErrUnsettled):
		return "etcd's voters to be connected with each other for five seconds", nil
	case err != nil && !errors.Is(err, membership.ErrNotFound):
		return "", err
	}
	m.log.Info("a node has left etcd", "node", node, "member", membership.Hex(c.ID), "why", c.Reason)
	return "", nil
}

// mayLeave is what the cluster says to it: Remove, Wait or Done. A refusal is the operator's answer, so voters have to be silent for
// a while before it is one.
func (m *Manager) mayLeave(ctx context.Context, node string) (membership.Change, error) {
	begun := m.now()
	for {
		all, err := m.etcd.Members(ctx)
		if err != nil {
			return membership.Change{}, err
		}
		asked, err := m.ask(ctx, all)
		if err != nil {
			return membership.Change{}, err
		}
		c := membership.Next(asked, membership.Wanted{Leave: node})
		if c.Do != membership.Refuse {
			return c, nil
		}
		if len(all) == 1 || m.now().Sub(begun) > hush || sleep.For(ctx, leaveEvery) != nil {
			return c, fmt.Errorf("%w: %s (%s)", ErrRefused, c.Reason, c.Who)
		}
	}
}

func (m *Manager) release(ctx context.Context, s *slot) error {
	if s.Holder == nil {
		return nil
	}
	s.Holder = nil
	return m.save(ctx, s)
}
