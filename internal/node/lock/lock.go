// SPDX-License-Identifier: Apache-2.0

// Package lock implements the node lock: a file that records whether a machine is free, claimed by a request, or committed to a
// cluster. It is the only place where init and join compete: the first to claim the lock gets the machine.
//
// It only records the state. It does not wipe a machine, does not decide whether a claim has failed, and never treats a damaged file
// as a free machine. Read [Lock] and [State] first.
//
//	l, err := lock.Open("/var/lib/slipway/state/lock") // no file: free
//	err = l.Claim(lock.Init, "r1")                     // claimed (init r1); a *TakenError for other requests
//	err = l.Commit("r1", "8f3a…", "dev-main-0")        // committed (cluster 8f3a…)
package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/broadcast"
	"github.com/slipway-project/slipway/internal/durable"
)

// Lock is an open node lock.
//
//	        Claim                Commit
//	free ──────────► claimed ──────────────► committed
//	  ▲                 │                        │
//	  └──── Release ────┘                        │
//	  └──────────────── Reset ───────────────────┘
//
// Every step is on the disk before it is visible. If the write fails, the state is unchanged; if even that is uncertain, the error is
// [ErrInDoubt].
//
// It is safe for concurrent use, also by several processes with the same file: each step holds a file lock and starts from the state
// on the disk. A caller of Reset must have authenticated the operator.
type Lock struct {
	path string
	save func(path string, schema int, v any) error // durable.Save; tests let it fail

	changed broadcast.Signal

	mu    sync.Mutex // guards the fields below
	state State
	doubt bool // the last write may or may not be on the disk
}

// ErrInDoubt reports a failed write after which a power cut may bring back either the old or the new state. Nothing may be deleted
// then. Repeating the step resolves the doubt.
var ErrInDoubt = errors.New("the node lock is in doubt")

// Open reads the lock. Without a file the machine is free. If the file is unreadable, the error says what to do, and the caller must
// stop, because the machine may belong to a cluster.
func Open(path string) (*Lock, error) {
	l := &Lock{path: path, save: durable.Save}
	if unlock, err := lockFile(path); err == nil { // a directory that is not writable can still be read
		defer unlock()
	}
	state, err := read(path)
	if err != nil {
		return nil, err
	}
	l.state = state
	return l, nil
}

// State returns the state as this process knows it. A step of another process becomes visible with the next step of this one.
func (l *Lock) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// Wait blocks until wanted returns true for the state, and returns that state. Its only error is that ctx has ended.
func (l *Lock) Wait(ctx context.Context, wanted func(State) bool) (State, error) {
	for {
		changed := l.changed.Wait()
		state := l.State()
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

// Claim claims a free machine for a request, which may repeat its claim. In all other cases the error is a *TakenError, also for the
// request that has committed, because it must not install again.
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

// Commit records that the machine belongs to a cluster. It may be repeated. If the request with this id does not hold the claim, the
// error is a *TakenError.
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

// Release ends the claim of a request. The caller must have wiped the machine. On a free machine it does nothing. For the claim of
// another request and for a committed machine, the error is a *TakenError.
func (l *Lock) Release(id string) error {
	return l.step(fmt.Sprintf("release this machine (%s)", id), func(old State) (State, bool) {
		if old.Phase == Free {
			return old, true
		}
		return State{Phase: Free}, old.Phase == Claimed && old.ID == id
	})
}

// Reset frees a machine that is committed to this cluster. The caller must have wiped the machine.
func (l *Lock) Reset(cluster string) error {
	return l.step(fmt.Sprintf("reset this machine (cluster %s)", cluster), func(old State) (State, bool) {
		return State{Phase: Free}, old.Phase == Committed && old.Cluster == cluster
	})
}

// step reads the state from the disk, applies the rule, writes the new state, and then makes it visible.
func (l *Lock) step(name string, rule func(old State) (State, bool)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	unlock, err := lockFile(l.path)
	if err != nil {
		return fmt.Errorf("%s: no change: %w", name, err)
	}
	defer unlock()
	old, err := read(l.path)
	if err == nil && l.doubt { // write what the disk contains once more, then it is certain
		if err = l.save(l.path, schema, old); err != nil {
			err = fmt.Errorf("%w: %w", ErrInDoubt, err)
		}
		l.doubt = err != nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	l.setLocked(old)
	next, ok := rule(old)
	if !ok {
		return &TakenError{Step: name, State: old}
	}
	if next == old {
		return nil
	}
	next.Since = time.Now().UTC().Round(0)
	if err := l.writeLocked(old, next); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	l.setLocked(next)
	return nil
}

func (l *Lock) setLocked(s State) {
	if s == l.state {
		return
	}
	l.state = s
	l.changed.Notify()
}
