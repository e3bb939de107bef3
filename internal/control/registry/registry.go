// SPDX-License-Identifier: Apache-2.0

// Package registry keeps the cluster's records: its nodes, its tokens, and what others of the control role keep (the etcd slot,
// the roster). Below lies a [Store], which knows compare-and-swap and no more: Secrets of the cluster in package kube, a store in memory for tests
// and simulations in package registrytest. Every control plane has a Registry of its own on the same records; a change holds or fails as a whole,
// whoever else writes. It never decides who may join (admission does), and never takes "no answer" for "nothing there".
//
// Read [Store], [Registry] and [Registry.Admit] first.
//
//	r := registry.New(store, time.Now).WithPolicy(policy)
//	err := r.Register(ctx, document.Records)                          // the operator's nodes
//	token, text, err := r.CreateToken(ctx, registry.TokenSpec{Pool: "worker"})
//	node, err := r.Admit(ctx, admission.Request{Key: pin, …})         // errors.As: *admission.Refusal, *admission.Wait
package registry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/sleep"
)

// Registry is the records, typed. It is safe for concurrent use.
type Registry struct {
	store  Store
	now    func() time.Time
	policy func(context.Context) (admission.Policy, error)
	*shared
}

// shared is what copies of a Registry have in common.
type shared struct {
	turn  chan struct{} // one writer of the nodes at a time in this process: the others would only make each other try again
	reads *flight

	mu   sync.Mutex // guards the field below
	last book       // the nodes as they were read last, so that they are decoded once
}

// New makes a registry that knows no policy: it keeps records, and lets nobody in.
func New(store Store, now func() time.Time) *Registry {
	return &Registry{store: store, now: now, shared: &shared{turn: make(chan struct{}, 1), reads: newFlight()}}
}

// WithPolicy is the same registry with a policy, which is asked for whenever it is needed.
func (r *Registry) WithPolicy(policy func(context.Context) (admission.Policy, error)) *Registry {
	out := *r
	out.policy = policy
	return &out
}

func (r *Registry) rules(ctx context.Context) (admission.Policy, error) {
	if r.policy == nil {
		return admission.Policy{}, errors.New("read admission policy: this registry has none")
	}
	p, err := r.policy(ctx)
	if err != nil {
		return admission.Policy{}, fmt.Errorf("read admission policy: %w", err)
	}
	return p, nil
}

// tries of a change, when others write the same record meanwhile. Each failed try means that somebody else got on.
const tries = 100

// errAgain asks for another try on fresh records.
var errAgain = errors.New("somebody else wrote it at the same time")

// swap calls try until it does something else than to lose against another writer. Conflicts of the store count as that.
func swap(ctx context.Context, what string, try func() error) error {
	for n := range tries {
		err := try()
		if !errors.Is(err, errAgain) && !errors.Is(err, ErrConflict) && !errors.Is(err, ErrExists) {
			return err
		}
		if err := pause(ctx, n); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	return fmt.Errorf("%s: others kept writing the same record during %d tries: try again", what, tries)
}

// pause lets others finish: two that lost against each other must not meet again. Nothing waits the first time.
func pause(ctx context.Context, n int) error {
	if n == 0 {
		return context.Cause(ctx)
	}
	return sleep.For(ctx, rand.N(time.Duration(min(n, 20))*time.Millisecond))
}
