// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/reconcile"
)

func TestWorks(t *testing.T) {
	t.Parallel()
	item := func(ref string, phase reconcile.Phase) reconcile.Status {
		return reconcile.Status{Ref: ref, Phase: phase}
	}
	etcd, dns := item("unit/etcd", reconcile.Ready), item(itemDNS, reconcile.Ready)
	for name, tc := range map[string]struct {
		items []reconcile.Status
		want  [2]bool
	}{
		"nothing is known":            {},
		"a machine without a plan":    {items: []reconcile.Status{item("node/lock", reconcile.Ready)}},
		"a worker":                    {items: []reconcile.Status{etcd}, want: [2]bool{true, false}},
		"a control plane":             {items: []reconcile.Status{etcd, dns}, want: [2]bool{true, true}},
		"not checked from end to end": {items: []reconcile.Status{etcd, item(itemDNS, reconcile.Starting)}, want: [2]bool{true, false}},
		"another node is missing":     {items: []reconcile.Status{etcd, dns, item("node/n2", reconcile.Failing)}, want: [2]bool{true, false}},
		"a file is missing":           {items: []reconcile.Status{etcd, dns, item("file//etc/x", reconcile.Failing)}},
		"a unit fell":                 {items: []reconcile.Status{item("unit/etcd", reconcile.Failing), dns}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if have := works(tc.items); have != tc.want {
				t.Errorf("node and cluster: %v, want %v", have, tc.want)
			}
		})
	}
}

type saidHandles struct {
	mu   sync.Mutex
	said []bool
}

func (s *saidHandles) SetNodeReady(_ context.Context, works bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said = append(s.said, works)
	return nil
}

func (s *saidHandles) all() []bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.said)
}
func (*saidHandles) SetClusterReady(context.Context, bool) error { return nil }

// A new agent does not take the handle away before it knows better; afterwards it does at once.
func TestKeepHandles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		board, h := reconcile.NewBoard(), &saidHandles{}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = keepHandles(ctx, board, h, slog.New(slog.DiscardHandler)) }()
		set := func(p reconcile.Phase) {
			board.Set(reconcile.Status{Ref: "unit/etcd", Phase: p, For: wait.For{What: string(p)}})
			synctest.Wait()
		}
		set(reconcile.Waiting)
		set(reconcile.Ready)
		set(reconcile.Failing)
		set(reconcile.Ready)
		time.Sleep(time.Minute) // nothing changes, and nothing is said
		synctest.Wait()
		if diff := cmp.Diff([]bool{true, false, true}, h.all()); diff != "" {
			t.Error(diff)
		}
		cancel()
		<-ended
	})
}

// What is not ready after a while is not only on its way.
func TestKeepHandlesAfterAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		board, h := reconcile.NewBoard(), &saidHandles{}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = keepHandles(ctx, board, h, slog.New(slog.DiscardHandler)) }()
		board.Set(reconcile.Status{Ref: "unit/etcd", Phase: reconcile.Waiting})
		time.Sleep(handleGrace - time.Second)
		synctest.Wait()
		if said := h.all(); len(said) != 0 {
			t.Errorf("said %v before it could know", said)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if diff := cmp.Diff([]bool{false}, h.all()); diff != "" {
			t.Error(diff)
		}
		cancel()
		<-ended
	})
}
