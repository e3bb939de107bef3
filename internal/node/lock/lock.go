// SPDX-License-Identifier: Apache-2.0

// Package lock is the journal that says to whom a machine belongs: to nobody, to a request that is being worked on, or to a
// cluster for good. Init and join meet here and nowhere else: the first to claim has the machine.
//
// It only writes the journal down. It never cleans a machine, never decides that a claim has failed, and never takes a damaged
// journal for a fresh one. Read [Lock] and [State] first.
//
//	l, err := lock.Open("/var/lib/slipway/state/lock") // no file: free
//	err = l.Claim(lock.Init, "r1")                     // claimed (init r1); a *TakenError for everybody else
//	err = l.Commit("r1", "8f3a…", "dev-main-0")        // committed (cluster 8f3a…)
package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/durable"
)

// Lock is an open journal.
//
//	        Claim                Commit
//	free ──────────► claimed ──────────────► committed
//	  ▲                 │                        │
//	  └──── Release ────┘                        │
//	  └──────────────── Reset ───────────────────┘
//
// Every step is on the disk before anybody sees it. A step whose writing fails did not happen: the state is what it was. Only
// when even that cannot be made sure of, the error is an [ErrInDoubt].
//
// It is safe for concurrent use, and several processes may have the same journal open: each step is taken under a file lock and
// begins with what the disk says. Reset is for a caller that has authenticated somebody.
type Lock struct {
	path string
	save func(path string, schema int, v any) error // durable.Save; tests let it fail

	mu      sync.Mutex // guards the fields below
	state   State
	doubt   bool          // the last write may or may not be on the disk
	changed chan struct{} // closed and replaced when state changes
}

// ErrInDoubt says that a write failed in such a way that nobody knows whether a power cut would bring back the state before or
// the one after. Nothing may be deleted then; taking the same step again settles it.
var ErrInDoubt = errors.New("the node lock is in doubt")

// Open reads the journal. An unreadable one is an error that says what to do: whoever opened it must stop, since the machine may
// belong to a cluster.
func Open(path string) (*Lock, error) {
	l := &Lock{path: path, save: durable.Save, changed: make(chan struct{})}
	state, err := l.first()
	if err != nil {
		return nil, err
	}
	l.state = state
	return l, nil
}

// State is the state as this process knows it. Another process's step is seen with the next step of this one.
func (l *Lock) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// Wait blocks until the state is one that is wanted, and gives it back. The error is the context's.
func (l *Lock) Wait(ctx context.Context, wanted func(State) bool) (State, error) {
	for {
		l.mu.Lock()
		state, changed := l.state, l.changed
		l.mu.Unlock()
		if wanted(state) {
			return state, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return state, fmt.Errorf("wait for the node lock, which is %s: %w", state, context.Cause(ctx))
		}
	}
}

// Claim takes a free machine for one request. The same request may claim again. In every other case the error is a *TakenError,
// also for the request that has committed: whoever claims goes on to install, and that is over.
func (l *Lock) Claim(by By, id string) error {
	if (by != Init && by != Join) || id == "" {
		return fmt.Errorf("claim this machine: by %q, id %q: both must be given", by, id)
	}
	return l.step(fmt.Sprintf("claim this machine (%s %s)", by, id), func(old State) (State, bool) {
		if old.Phase == Claimed && old.By == by && old.ID == id {
			return old, true
		}
		return State{Phase: Claimed, By: by, ID: id}, old.Phase == Free
	})
}

// Commit makes the machine the cluster's. The same commit may be repeated. Without the claim of this id the error is a *TakenError.
func (l *Lock) Commit(id, cluster, node string) error {
	if cluster == "" || node == "" {
		return fmt.Errorf("commit this machine (%s): cluster %q, node %q: both must be given", id, cluster, node)
	}
	return l.step(fmt.Sprintf("commit this machine (%s)", id), func(old State) (State, bool) {
		next := State{Phase: Committed, By: old.By, ID: id, Cluster: cluster, Node: node}
		if old.Phase == Committed && old.ID == id && old.Cluster == cluster && old.Node == node {
			return old, true
		}
		return next, old.Phase == Claimed && old.ID == id
	})
}

// Release gives a claim back; what the claim had made, the caller has removed before. A free machine stays free. The claim of
// another id and a committed machine give a *TakenError.
func (l *Lock) Release(id string) error {
	return l.step(fmt.Sprintf("release this machine (%s)", id), func(old State) (State, bool) {
		if old.Phase == Free {
			return old, true
		}
		return State{Phase: Free}, old.Phase == Claimed && old.ID == id
	})
}

// Reset frees a committed machine, of this cluster only; what the cluster had made here, the caller has removed before.
func (l *Lock) Reset(cluster string) error {
	return l.step(fmt.Sprintf("reset this machine (cluster %s)", cluster), func(old State) (State, bool) {
		return State{Phase: Free}, old.Phase == Committed && old.Cluster == cluster
	})
}

// step is the one way on: read what the disk says, ask the rule, write, and only then show it.
func (l *Lock) step(asked string, rule func(old State) (State, bool)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	unlock, err := exclusive(l.path)
	if err != nil {
		return fmt.Errorf("%s: nothing has changed: %w", asked, err)
	}
	defer unlock()
	old, err := l.settleLocked()
	if err != nil {
		return fmt.Errorf("%s: %w", asked, err)
	}
	l.showLocked(old)
	next, ok := rule(old)
	if !ok {
		return &TakenError{Asked: asked, State: old}
	}
	if next == old {
		return nil
	}
	next.Since = time.Now().UTC().Round(0)
	if err := l.writeLocked(old, next); err != nil {
		return fmt.Errorf("%s: %w", asked, err)
	}
	l.showLocked(next)
	return nil
}

func (l *Lock) showLocked(s State) {
	if s == l.state {
		return
	}
	l.state = s
	close(l.changed)
	l.changed = make(chan struct{})
}
