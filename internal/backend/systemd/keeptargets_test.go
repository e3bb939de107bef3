// SPDX-License-Identifier: Apache-2.0

package systemd

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

func TestReady(t *testing.T) {
	t.Parallel()
	item := func(ref string, phase reconcile.Phase) reconcile.Status {
		return reconcile.Status{Ref: ref, Phase: phase}
	}
	etcd, dns := item("unit/etcd", reconcile.Ready), item(itemDNS, reconcile.Ready)
	for name, tc := range map[string]struct {
		items []reconcile.Status
		want  [2]bool
	}{
		"an empty board":              {},
		"a machine without a plan":    {items: []reconcile.Status{item("node/lock", reconcile.Ready)}},
		"a worker":                    {items: []reconcile.Status{etcd}, want: [2]bool{true, false}},
		"a control plane":             {items: []reconcile.Status{etcd, dns}, want: [2]bool{true, true}},
		"not checked from end to end": {items: []reconcile.Status{etcd, item(itemDNS, reconcile.Starting)}, want: [2]bool{true, false}},
		"another node is missing":     {items: []reconcile.Status{etcd, dns, item("node/n2", reconcile.Failing)}, want: [2]bool{true, false}},
		"a file is missing":           {items: []reconcile.Status{etcd, dns, item("file//etc/x", reconcile.Failing)}},
		"a unit failed":               {items: []reconcile.Status{item("unit/etcd", reconcile.Failing), dns}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if have := ready(tc.items); have != tc.want {
				t.Errorf("got node and cluster %v, want %v", have, tc.want)
			}
		})
	}
}

type recordedTargets struct {
	mu  sync.Mutex
	set []bool
}

func (s *recordedTargets) SetNodeReady(_ context.Context, ready bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set = append(s.set, ready)
	return nil
}

func (s *recordedTargets) all() []bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.set)
}
func (*recordedTargets) SetClusterReady(context.Context, bool) error { return nil }

// A new agent does not stop the target before it knows the state of the node; afterwards it does so at once.
func TestKeepTargets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		board, h := reconcile.NewBoard(), &recordedTargets{}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = keepTargets(ctx, board, h, slog.New(slog.DiscardHandler)) }()
		set := func(p reconcile.Phase) {
			board.Set(reconcile.Status{Ref: "unit/etcd", Phase: p, For: wait.For{What: string(p)}})
			synctest.Wait()
		}
		set(reconcile.Waiting)
		set(reconcile.Ready)
		set(reconcile.Failing)
		set(reconcile.Ready)
		time.Sleep(time.Minute) // nothing changes, so no target is set
		synctest.Wait()
		if diff := cmp.Diff([]bool{true, false, true}, h.all()); diff != "" {
			t.Error(diff)
		}
		cancel()
		<-ended
	})
}

// A node that is not ready after the grace period is not merely starting.
func TestKeepTargetsAfterGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		board, h := reconcile.NewBoard(), &recordedTargets{}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = keepTargets(ctx, board, h, slog.New(slog.DiscardHandler)) }()
		board.Set(reconcile.Status{Ref: "unit/etcd", Phase: reconcile.Waiting})
		time.Sleep(targetsGrace - time.Second)
		synctest.Wait()
		if set := h.all(); len(set) != 0 {
			t.Errorf("set %v before the state was known", set)
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
