// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/control/lease"
	"github.com/slipway-project/slipway/internal/core/membership"
)

// Run keeps the slot honest until ctx ends: one whose holder is not heard of is cleared, a learner that belongs to no join is
// removed after a grace, and voters that belong to no node are reported. Every control plane runs it; they do not disturb
// each other.
func (m *Manager) Run(ctx context.Context) error {
	poke := make(chan struct{}, 1)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		err := m.records.WatchKind(ctx, kind, func() {
			select {
			case poke <- struct{}{}:
			default:
			}
		})
		if err != nil && ctx.Err() == nil {
			m.log.Warn("the cluster's records are not watched; the etcd slot is looked at by the clock alone", "err", err)
		}
		return nil
	})
	g.Go(func() error {
		m.keep(ctx, poke)
		return nil
	})
	if err := g.Wait(); err != nil {
		return fmt.Errorf("keep the etcd slot: %w", err)
	}
	return nil
}

func (m *Manager) keep(ctx context.Context, poke <-chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var failing time.Time // since when; at a machine's start etcd takes its time
	told := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-poke:
		case <-timer.C:
		}
		next, err := m.look(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil || errors.Is(err, lease.ErrLost):
			failing, told = time.Time{}, ""
		case failing.IsZero():
			failing = m.now()
		case m.now().Sub(failing) > quiet && err.Error() != told:
			told = err.Error()
			m.log.Warn("the etcd slot is not kept", "err", err, "since", failing)
		}
		timer.Reset(next)
	}
}

// look does what there is to do, and says when to look again.
func (m *Manager) look(ctx context.Context) (time.Duration, error) {
	s, err := m.load(ctx)
	if err != nil {
		return lookEvery, err
	}
	if s.Holder != nil {
		if left := m.left(s); left > 0 {
			return min(left, lookEvery), nil
		}
		return time.Second, m.clear(ctx, &s)
	}
	all, err := m.etcd.Members(ctx)
	if err != nil {
		return lookEvery, err
	}
	if err := m.report(ctx, all); err != nil {
		return lookEvery, err
	}
	dead := m.orphans(all, nil)
	for _, l := range all {
		if len(dead) == 0 || l.ID != dead[0] {
			continue
		}
		// The slot is taken for it, so that no join begins to count on the learner meanwhile.
		s.Holder = &holder{Node: l.String(), PeerURL: l.PeerURL, Member: membership.Hex(l.ID), Phase: clearing, Since: m.now()}
		return time.Second, m.clear(ctx, &s)
	}
	return lookEvery, m.remember(ctx, &s, all)
}

// remember writes down which voter is whose, so that data of one that is removed some day is known to be worthless.
func (m *Manager) remember(ctx context.Context, s *slot, all []membership.Member) error {
	fresh := false
	for _, v := range all {
		if v.Name != "" && !v.Learner && s.Known[v.Name] != membership.Hex(v.ID) {
			s.Known[v.Name], fresh = membership.Hex(v.ID), true
		}
	}
	if !fresh {
		return nil
	}
	return m.save(ctx, s)
}

// report tells once of voters that are no node's. They are never removed by a machine: a record may be what is missing.
func (m *Manager) report(ctx context.Context, all []membership.Member) error {
	nodes, err := m.records.Nodes(ctx)
	if err != nil {
		return fmt.Errorf("read the nodes' records: %w", err)
	}
	known := map[string]bool{}
	for _, n := range nodes {
		known[n.Name] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range all {
		key := "unknown voter " + membership.Hex(v.ID)
		if v.Learner || known[v.Name] || len(nodes) == 0 || m.told[key] {
			continue
		}
		m.told[key] = true
		m.log.Warn("a voter of etcd belongs to no node; if it is gone for good: slipway node remove", "member", membership.Hex(v.ID), "name", v.Name, "peer", v.PeerURL)
	}
	return nil
}
