// SPDX-License-Identifier: Apache-2.0

package etcdfake

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/slipway-project/slipway/internal/core/membership"
)

// Client connects to the member of one node, like the client of package etcd.
type Client struct {
	c    *Cluster
	node string
}

// Client returns a client of a node's own member, which need not be running.
func (c *Cluster) Client(node string) *Client { return &Client{c, node} }

var errTimeout = errors.New("etcd did not respond in time")

// call runs f under the lock if the own member is part of a quorum. Otherwise it waits for the deadline.
func (k *Client) call(ctx context.Context, f func() error) error {
	c := k.c
	c.mu.Lock()
	p := c.procs[k.node]
	if p != nil && p.up && !p.cut && c.quorum() {
		defer c.mu.Unlock()
		m, ok := c.members[p.data]
		if !ok {
			return errors.New("this member was removed")
		}
		if m.Learner {
			return errors.New("rpc not supported for learner")
		}
		return f()
	}
	deadline := c.Deadline
	c.mu.Unlock()
	if deadline == 0 {
		deadline = 3 * time.Second
	}
	timer := time.NewTimer(deadline)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return errTimeout
	}
}

// alter is call with fault injection.
func (k *Client) alter(ctx context.Context, what string, f func() error) error {
	fault := k.c.Fault
	if fault == nil {
		fault = func(context.Context, string) error { return nil }
	}
	if err := fault(ctx, what+" before"); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if err := k.call(ctx, f); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if err := fault(ctx, what+" after"); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Members lists the members.
func (k *Client) Members(ctx context.Context) (all []membership.Member, err error) {
	err = k.call(ctx, func() error {
		all = k.c.list()
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list members: %w", err)
	}
	return all, nil
}

// Health returns the member with its health.
func (k *Client) Health(ctx context.Context, m membership.Member) (membership.Member, error) {
	if err := ctx.Err(); err != nil {
		return m, err
	}
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	_, in := k.c.members[m.ID]
	m.Healthy = in && k.c.reachable(m.ID) != nil && k.c.leader != 0
	m.Leader = m.Healthy && k.c.leader == m.ID
	return m, nil
}

// AddLearner adds a member without a vote.
func (k *Client) AddLearner(ctx context.Context, peerURL string) (id uint64, all []membership.Member, err error) {
	c := k.c
	err = k.alter(ctx, "add", func() error {
		for _, m := range c.members {
			if m.PeerURL == peerURL {
				return membership.ErrExists
			}
			if m.Learner {
				return membership.ErrBusy
			}
		}
		if n, voters := c.connected(c.Settle); voters > 1 && n < membership.Quorum(voters+1) {
			return membership.ErrUnsettled
		}
		id = c.add(peerURL, true)
		all = c.list()
		return nil
	})
	if err != nil {
		return 0, nil, err
	}
	return id, all, nil
}

// Promote makes a learner a voter.
func (k *Client) Promote(ctx context.Context, id uint64) error {
	c := k.c
	return k.alter(ctx, "promote", func() error {
		m, ok := c.members[id]
		switch {
		case !ok:
			return membership.ErrNotFound
		case !m.Learner:
			return membership.ErrNotLearner
		}
		if p := c.reachable(id); p == nil || time.Since(p.since) < c.CatchUp {
			return membership.ErrNotCaughtUp
		}
		m.Learner = false
		c.members[id] = m
		c.note()
		c.elect()
		return nil
	})
}

// Remove removes a member. Its process exits.
func (k *Client) Remove(ctx context.Context, id uint64) error {
	c := k.c
	return k.alter(ctx, "remove", func() error {
		m, ok := c.members[id]
		if !ok {
			return membership.ErrNotFound
		}
		if n, voters := c.connected(c.Settle); !m.Learner && c.reachable(id) != nil && n-1 < membership.Quorum(voters-1) {
			return membership.ErrUnsettled
		}
		delete(c.members, id)
		c.gone[id] = true
		for _, p := range c.procs {
			if p.data == id {
				p.up = false
			}
		}
		c.note()
		c.elect()
		return nil
	})
}

// MoveLeader transfers the leadership to another voter if id is the leader.
func (k *Client) MoveLeader(ctx context.Context, id uint64) error {
	c := k.c
	return k.alter(ctx, "move leader", func() error {
		if c.leader != id {
			return nil
		}
		for _, m := range c.list() {
			if m.ID != id && !m.Learner && c.reachable(m.ID) != nil {
				c.leader = m.ID
				return nil
			}
		}
		return errors.New("no other voter takes over")
	})
}

// Put writes a key.
func (k *Client) Put(ctx context.Context, key, value string) error {
	return k.call(ctx, func() error {
		k.c.store[key] = value
		return nil
	})
}

// Get reads a key as a quorum knows it; "" if it does not exist.
func (k *Client) Get(ctx context.Context, key string) (value string, err error) {
	err = k.call(ctx, func() error {
		value = k.c.store[key]
		return nil
	})
	return value, err
}
