// SPDX-License-Identifier: Apache-2.0

// Package registry keeps the cluster's records: its nodes, its tokens, and records of other packages such as leases and the roster.
// It works on a [Store], which offers compare-and-swap: Secrets of the cluster in package kube, or memory in package registrytest.
// Every control plane has a Registry on the same records. A change is written as a whole or not at all, however many control planes
// write. Package admission decides who may join; a store that does not answer never counts as an empty one.
//
// Read [Store], [Registry] and [Registry.Admit] first.
//
//	r := registry.New(store, time.Now).WithPolicy(policy)
//	err := r.Register(ctx, document.Records)                          // the operator's nodes
//	token, text, err := r.CreateToken(ctx, registry.TokenSpec{Pool: "worker"})
//	node, err := r.Admit(ctx, admission.Request{Key: pin, …})         // errors.As: *admission.Refusal, *wait.Error
package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/strictjson"
	"github.com/slipway-project/slipway/internal/sleep"
)

// Registry reads and writes the records. It is safe for concurrent use.
type Registry struct {
	store  Store
	now    func() time.Time
	policy func(context.Context) (admission.Policy, error)
	*shared
}

// shared is what copies of a Registry have in common.
type shared struct {
	writer chan struct{} // holds a value while a goroutine of this process writes the nodes: concurrent writers would only conflict
	reads  *sharedReads

	mu   sync.Mutex // guards the field below
	last book       // the newest known version of the nodes, so that each version is decoded once
}

// New returns a registry without a policy. It keeps records but admits no machine.
func New(store Store, now func() time.Time) *Registry {
	return &Registry{store: store, now: now, shared: &shared{writer: make(chan struct{}, 1), reads: &sharedReads{running: make(chan struct{}, 1)}}}
}

// WithPolicy returns a registry on the same records that calls policy for each decision.
func (r *Registry) WithPolicy(policy func(context.Context) (admission.Policy, error)) *Registry {
	out := *r
	out.policy = policy
	return &out
}

func (r *Registry) readPolicy(ctx context.Context) (admission.Policy, error) {
	if r.policy == nil {
		return admission.Policy{}, errors.New("read admission policy: this registry has none")
	}
	p, err := r.policy(ctx)
	if err != nil {
		return admission.Policy{}, fmt.Errorf("read admission policy: %w", err)
	}
	return p, nil
}

// Load decodes another package's record into a value; unknown fields are an error. The errors are those of [Store.Get].
func (r *Registry) Load(ctx context.Context, kind, name string, into any) (version string, err error) {
	if err := checkKind(kind); err != nil {
		return "", err
	}
	return r.load(ctx, kind, name, into)
}

// Save writes another package's record as JSON. It creates the record if version is "", and otherwise replaces exactly that version.
// The errors are those of [Store.Put].
func (r *Registry) Save(ctx context.Context, kind, name, version string, value any) (newVersion string, err error) {
	if err := checkKind(kind); err != nil {
		return "", err
	}
	return r.save(ctx, kind, name, version, value)
}

// Drop deletes another package's record. The errors are those of [Store.Delete].
func (r *Registry) Drop(ctx context.Context, kind, name, version string) error {
	if err := checkKind(kind); err != nil {
		return err
	}
	return r.store.Delete(ctx, kind, name, version)
}

// WatchKind is [Store.Watch] for another package's kind.
func (r *Registry) WatchKind(ctx context.Context, kind string, changed func()) error {
	return r.store.Watch(ctx, kind, changed)
}

// checkKind refuses the registry's own kinds, whose rules only its own methods keep.
func checkKind(kind string) error {
	if kind == kindNodes || kind == kindToken {
		return fmt.Errorf("record of kind %s: only the registry's own methods may access it", kind)
	}
	return nil
}

func (r *Registry) load(ctx context.Context, kind, name string, into any) (version string, err error) {
	item, err := r.store.Get(ctx, kind, name)
	if err != nil {
		return "", err
	}
	if err := strictjson.Decode(item.Data, into); err != nil {
		return "", fmt.Errorf("read record %s %s: %w", kind, name, err)
	}
	return item.Version, nil
}

func (r *Registry) save(ctx context.Context, kind, name, version string, value any) (newVersion string, err error) {
	data, err := json.Marshal(value)
	if err != nil {
		return "", fmt.Errorf("write record %s %s: %w", kind, name, err)
	}
	item, err := r.store.Put(ctx, Item{Kind: kind, Name: name, Version: version, Data: data})
	if err != nil {
		return "", err
	}
	return item.Version, nil
}

// tries limits how often a change is tried again after a conflict. Each conflict means that another writer has succeeded.
const tries = 100

// swap calls try until it succeeds or fails with anything but a conflict. It waits a random time between tries, so that two writers
// do not conflict again and again.
func swap(ctx context.Context, what string, try func() error) error {
	for n := range tries {
		err := try()
		if !errors.Is(err, ErrConflict) && !errors.Is(err, ErrExists) {
			return err
		}
		if n == 0 {
			err = context.Cause(ctx)
		} else {
			err = sleep.For(ctx, rand.N(time.Duration(min(n, 20))*time.Millisecond))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	return fmt.Errorf("%s: conflicts with other writers in each of %d tries: try again", what, tries)
}

// exclusive calls do when no other goroutine of this process writes the nodes.
func (r *Registry) exclusive(ctx context.Context, what string, do func() error) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	case r.writer <- struct{}{}:
	}
	defer func() { <-r.writer }()
	return do()
}
