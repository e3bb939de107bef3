// SPDX-License-Identifier: Apache-2.0

// Package enrol is a machine's way into a cluster, its life there, and its way out. A machine that belongs to nobody waits for an
// initialiser and, as soon as it is told of a cluster, asks to join; the first to claim the node lock has the machine. A machine
// that belongs to a cluster needs nobody to come up: it only keeps in touch. It never plans, and decides nothing about the
// cluster.
//
// Read [Enrolment.Run] first, then join.go and belong.go.
package enrol

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/node"
	"github.com/slipway-project/slipway/internal/node/joinclient"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// Enrolment is one machine's. It implements node.Enrolment.
type Enrolment struct {
	cfg Config

	mu     sync.Mutex // guards the fields below
	target *node.JoinTarget
	told   chan struct{} // closed and replaced when the target changes
	says   map[string]reconcile.Status
	sync   *joinclient.Sync // nil while out of touch
	ready  chan struct{}    // closed and replaced when sync changes

	once  sync.Once
	again chan struct{} // closed when the agent has to start anew

	resetting chan struct{} // holds one: whoever takes the machine out of its cluster
}

// New reads which cluster the machine was told to join.
func New(cfg Config) (*Enrolment, error) {
	e := &Enrolment{cfg: cfg.filled(), told: make(chan struct{}), ready: make(chan struct{}), again: make(chan struct{}), resetting: make(chan struct{}, 1), says: map[string]reconcile.Status{}}
	if err := e.recall(); err != nil {
		return nil, err
	}
	return e, nil
}

// Run serves until ctx ends. What the disk says and the lock contradicts stops it with an error that says what to do.
func (e *Enrolment) Run(ctx context.Context) error {
	if err := e.settle(ctx); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return e.initialise(ctx) })
	group.Go(func() error { return e.live(ctx) })
	group.Go(func() error {
		select {
		case <-e.again:
			return ErrAnew
		case <-ctx.Done():
			return nil
		}
	})
	return group.Wait()
}

// settle finishes a wipe that was broken off, undoes a join that was, and refuses what cannot be.
func (e *Enrolment) settle(ctx context.Context) error {
	e.resetting <- struct{}{} // a reset that was asked for meanwhile ends as well
	defer func() { <-e.resetting }()
	now := e.cfg.Lock.State()
	_, installed := e.cfg.Agent.Installed()
	switch {
	case e.cfg.Agent.Wiping(), now.Phase == lock.Claimed && now.By == lock.Join:
		// The wipe needs the agent's loop, which Run's caller has begun.
		if now.Phase != lock.Committed { // nothing of its own is lost: it is who it was, and knows where it wants to
			return e.cfg.Agent.Wipe(ctx, e.free)
		}
		return e.anew(ctx)
	case now.Phase == lock.Free && installed:
		return errors.New("this machine has a node's plan, and its node lock does not say of which cluster: the lock was lost; " +
			"restore it from a backup, or remove the machine from its cluster (slipway node remove) and make it anew")
	case now.Phase == lock.Committed && !installed:
		e.say(reconcile.Status{
			Ref: itemLock, Phase: reconcile.Failing, For: wait.For{Who: "slipway up"},
			Error: fmt.Sprintf("this machine belongs to cluster %s, and its plan is lost", now.Cluster),
		})
	}
	return nil
}

// free opens the lock, however it stands.
func (e *Enrolment) free() error {
	e.cfg.Pass("free")
	defer e.cfg.Pass("freed")
	switch now := e.cfg.Lock.State(); now.Phase {
	case lock.Claimed:
		return e.cfg.Lock.Release(now.ID)
	case lock.Committed:
		return e.cfg.Lock.Reset(now.Cluster)
	case lock.Free:
	}
	return nil
}

// live goes from one place in the lock's life to the next. A join that has claimed the machine is not broken off.
func (e *Enrolment) live(ctx context.Context) error {
	for ctx.Err() == nil {
		now := e.cfg.Lock.State()
		work := func(context.Context) error { return nil } // an init is at work
		switch now.Phase {
		case lock.Free:
			work = e.joins
		case lock.Committed:
			work = func(ctx context.Context) error { return e.belongs(ctx, now) }
		case lock.Claimed:
		}
		stay, leave := context.WithCancel(ctx)
		watching, failed := context.WithCancel(ctx)
		var there errgroup.Group
		there.Go(func() error {
			err := work(stay)
			if err != nil {
				failed()
			}
			return err
		})
		_, _ = e.cfg.Lock.Wait(watching, func(s lock.State) bool { // its only error is that watching has ended
			ours := now.Phase == lock.Free && s.Phase == lock.Claimed && s.By == lock.Join
			return s.Phase != now.Phase && !ours
		})
		leave()
		failed()
		if err := there.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// State tells where the machine stands.
func (e *Enrolment) State() node.Enrolled {
	now := e.cfg.Lock.State()
	return node.Enrolled{Phase: string(now.Phase), Cluster: now.Cluster, Node: now.Node}
}
