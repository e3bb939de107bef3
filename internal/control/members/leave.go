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

// ErrRefused means that the node cannot leave etcd now, because the remaining voters would have no quorum.
var ErrRefused = errors.New("refused")

const (
	leaveEvery  = 200 * time.Millisecond
	refuseAfter = 4 * time.Second // voters must be silent this long before a refusal: an election takes no longer
)

// MayLeave returns ErrRefused if Leave would be refused now, and changes nothing. That Leave would have to wait is not an error.
func (m *Manager) MayLeave(ctx context.Context, node string) error {
	if _, err := m.nextForLeave(ctx, node); err != nil {
		return fmt.Errorf("remove %s from etcd: %w", node, err)
	}
	return nil
}

// Leave removes a node from etcd for good. It waits until ctx ends if it has to; its error then says for what. It fails with
// ErrRefused if the remaining voters would have no quorum. If the node is not a member, it does nothing.
func (m *Manager) Leave(ctx context.Context, node string) error {
	logged := ""
	for {
		wait, err := m.leave(ctx, node)
		switch {
		case errors.Is(err, lease.ErrLost):
		case err != nil:
			return fmt.Errorf("remove %s from etcd: %w", node, err)
		case wait == "":
			return nil
		case wait != logged:
			m.log.Info("a node waits to leave etcd", "node", node, "for", wait)
			logged = wait
		}
		if sleep.For(ctx, leaveEvery) != nil {
			return fmt.Errorf("remove %s from etcd: still waiting for %s: %w", node, logged, ctx.Err())
		}
	}
}

// leave tries once. It returns what it waits for, or "" once the node is not a member.
func (m *Manager) leave(ctx context.Context, node string) (wait string, err error) {
	s, err := m.load(ctx)
	if err != nil {
		return "", err
	}
	if s.Holder != nil && s.Holder.Node != node { // a lease of the node's own join is replaced
		if m.left(s) > 0 {
			return leaseName + ": " + s.Holder.String(), nil
		}
		return leaseName + ": " + s.Holder.String(), m.clear(ctx, &s)
	}
	c, err := m.nextForLeave(ctx, node)
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
	wait, err = m.removeMember(ctx, node)
	if err := m.release(ctx, &s); err != nil { // a machine that removed itself cannot write any more
		m.log.Warn("membership lease not released; it expires", "node", node, "err", err)
	}
	return wait, err
}

// removeMember removes the node's member while this machine holds the lease. It checks again whether it may: the members can have
// changed before the lease was acquired.
func (m *Manager) removeMember(ctx context.Context, node string) (wait string, err error) {
	ctx, cancel := context.WithTimeout(ctx, leaseLife/2)
	defer cancel()
	c, err := m.nextForLeave(ctx, node)
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
		return unsettled, nil
	case err != nil && !errors.Is(err, membership.ErrNotFound):
		return "", err
	}
	m.log.Info("node removed from etcd", "node", node, "member", membership.Hex(c.ID), "why", c.Reason)
	return "", nil
}

// nextForLeave returns the next change for a node that leaves: Remove, Wait or Done. It fails with ErrRefused only after voters were
// silent for a while, because a refusal ends the operator's command.
func (m *Manager) nextForLeave(ctx context.Context, node string) (membership.Change, error) {
	begun := m.now()
	for {
		all, err := m.etcd.Members(ctx)
		if err != nil {
			return membership.Change{}, err
		}
		all, err = m.health(ctx, all)
		if err != nil {
			return membership.Change{}, err
		}
		c := membership.Next(all, membership.Wanted{Leave: node})
		if c.Do != membership.Refuse {
			return c, nil
		}
		if len(all) == 1 || m.now().Sub(begun) > refuseAfter || sleep.For(ctx, leaveEvery) != nil {
			return c, fmt.Errorf("%w: %s (%s)", ErrRefused, c.Reason, c.Who)
		}
	}
}
