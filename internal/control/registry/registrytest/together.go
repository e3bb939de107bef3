// SPDX-License-Identifier: Apache-2.0

package registrytest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/control/registry"
)

// race increments a number concurrently by compare-and-swap. No increment may be lost.
func race(t *testing.T, s registry.Store) {
	const writers, each = 8, 10
	put(t, s, registry.Item{Kind: "race", Name: "n", Data: []byte{0}})
	var created atomic.Int32
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			if _, err := s.Put(t.Context(), registry.Item{Kind: "race", Name: "once"}); err == nil {
				created.Add(1)
			} else if !errors.Is(err, registry.ErrExists) {
				t.Error(err)
			}
			for range each {
				if err := increment(t.Context(), s); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got, err := s.Get(t.Context(), "race", "n"); err != nil || got.Data[0] != writers*each || created.Load() != 1 {
		t.Errorf("the number is %v, %v; %d created the same", got.Data, err, created.Load())
	}
}

func increment(ctx context.Context, s registry.Store) error {
	for {
		item, err := s.Get(ctx, "race", "n")
		if err != nil {
			return err
		}
		item.Data[0]++
		if _, err = s.Put(ctx, item); !errors.Is(err, registry.ErrConflict) {
			return err
		}
	}
}

func watch(t *testing.T, s registry.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	calls, done := make(chan struct{}, 1000), make(chan error, 1)
	var at atomic.Int32
	go func() {
		done <- s.Watch(ctx, "watch", func() {
			if at.Add(1) != 1 {
				t.Error("two calls at a time")
			}
			calls <- struct{}{}
			at.Add(-1)
		})
	}()
	told(t, calls, "the start")
	item := registry.Item{Kind: "watch", Name: "a"}
	for i, step := range []func() error{
		func() (err error) { item, err = s.Put(ctx, item); return err },
		func() (err error) { item.Data = []byte("x"); item, err = s.Put(ctx, item); return err },
		func() error { return s.Delete(ctx, "watch", "a", "") },
	} {
		for len(calls) > 0 {
			<-calls
		}
		if err := step(); err != nil {
			t.Fatal(err)
		}
		told(t, calls, fmt.Sprint("step ", i))
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the watch ended with %v", err)
	}
}

func told(t *testing.T, calls <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-calls:
	case <-time.After(30 * time.Second):
		t.Fatalf("no call of changed after %s", what)
	}
}

func ended(t *testing.T, s registry.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Get(ctx, "ended", "a"); err == nil || errors.Is(err, registry.ErrNotFound) {
		t.Errorf("get: %v", err)
	}
	if items, err := s.List(ctx, "ended"); err == nil {
		t.Errorf("list without an answer: %v", items)
	}
	if _, err := s.Put(ctx, registry.Item{Kind: "ended", Name: "a"}); err == nil {
		t.Error("put was taken")
	}
	if err := s.Delete(ctx, "ended", "a", ""); err == nil || errors.Is(err, registry.ErrNotFound) {
		t.Errorf("delete: %v", err)
	}
	if err := s.Watch(ctx, "ended", func() {}); !errors.Is(err, context.Canceled) {
		t.Errorf("watch: %v", err)
	}
}
