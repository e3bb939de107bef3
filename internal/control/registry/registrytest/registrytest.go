// SPDX-License-Identifier: Apache-2.0

// Package registrytest is what every store of records must promise, as tests, and a store in memory that keeps it and does on
// request what a bad day does. The suite runs on that store and on the Secrets of a real cluster. The package is never part of
// what ships, and tests nothing above the store.
//
// Read [Conformance] and [Memory].
//
//	registrytest.Conformance(t, func(t *testing.T) registry.Store { return registrytest.NewMemory() })
//	store.SetFault(func(registrytest.Op) registrytest.Fault { return registrytest.Fault{Lost: errPower} }) // done, and nobody is told
package registrytest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/control/registry"
)

// Conformance runs the suite. newStore may give the same store each time: each test keeps to kinds of its own.
func Conformance(t *testing.T, newStore func(t *testing.T) registry.Store) {
	for name, test := range map[string]func(*testing.T, registry.Store){
		"create":  create,
		"swap":    swap,
		"delete":  remove,
		"list":    list,
		"names":   names,
		"data":    data,
		"race":    race,
		"watch":   watch,
		"context": ended,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newStore(t))
		})
	}
}

func put(t *testing.T, s registry.Store, item registry.Item) registry.Item {
	t.Helper()
	out, err := s.Put(t.Context(), item)
	if err != nil {
		t.Fatalf("put %s %s: %v", item.Kind, item.Name, err)
	}
	return out
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", what, err, want)
	}
}

func create(t *testing.T, s registry.Store) {
	_, err := s.Get(t.Context(), "create", "a")
	wantErr(t, "get before", err, registry.ErrNotFound)
	made := put(t, s, registry.Item{Kind: "create", Name: "a", Data: []byte("1")})
	if made.Version == "" || made.Kind != "create" || made.Name != "a" || string(made.Data) != "1" {
		t.Errorf("created %+v", made)
	}
	got, err := s.Get(t.Context(), "create", "a")
	if diff := cmp.Diff(made, got); diff != "" || err != nil {
		t.Errorf("read back: %v\n%s", err, diff)
	}
	_, err = s.Put(t.Context(), registry.Item{Kind: "create", Name: "a", Data: []byte("2")})
	wantErr(t, "create again", err, registry.ErrExists)
	_, err = s.Get(t.Context(), "other-kind", "a")
	wantErr(t, "the same name of another kind", err, registry.ErrNotFound)
}

func swap(t *testing.T, s registry.Store) {
	first := put(t, s, registry.Item{Kind: "swap", Name: "a", Data: []byte("1")})
	second := first
	second.Data = []byte("2")
	second = put(t, s, second)
	if second.Version == first.Version {
		t.Error("two contents have one version")
	}
	stale := first
	stale.Data = []byte("3")
	_, err := s.Put(t.Context(), stale)
	wantErr(t, "put a stale version", err, registry.ErrConflict)
	if got, err := s.Get(t.Context(), "swap", "a"); err != nil || string(got.Data) != "2" || got.Version != second.Version {
		t.Errorf("after a conflict there is %+v, %v", got, err)
	}
	if err := s.Delete(t.Context(), "swap", "a", second.Version); err != nil {
		t.Fatal(err)
	}
	_, err = s.Put(t.Context(), second)
	wantErr(t, "put what is gone", err, registry.ErrConflict)
	_, err = s.Get(t.Context(), "swap", "a")
	wantErr(t, "what is gone does not come back", err, registry.ErrNotFound)
	put(t, s, registry.Item{Kind: "swap", Name: "a", Data: []byte("4")})
	_, err = s.Put(t.Context(), second)
	wantErr(t, "put over a new life of the name", err, registry.ErrConflict)
}

func remove(t *testing.T, s registry.Store) {
	wantErr(t, "delete nothing", s.Delete(t.Context(), "delete", "a", ""), registry.ErrNotFound)
	first := put(t, s, registry.Item{Kind: "delete", Name: "a", Data: []byte("1")})
	second := first
	second.Data = []byte("2")
	put(t, s, second)
	wantErr(t, "delete a stale version", s.Delete(t.Context(), "delete", "a", first.Version), registry.ErrConflict)
	if _, err := s.Get(t.Context(), "delete", "a"); err != nil {
		t.Errorf("after a conflict: %v", err)
	}
	if err := s.Delete(t.Context(), "delete", "a", ""); err != nil {
		t.Errorf("delete whatever there is: %v", err)
	}
	wantErr(t, "delete a version that is gone", s.Delete(t.Context(), "delete", "a", first.Version), registry.ErrNotFound)
}

func list(t *testing.T, s registry.Store) {
	if items, err := s.List(t.Context(), "list"); err != nil || len(items) != 0 {
		t.Errorf("an empty kind: %v, %v", items, err)
	}
	var want []registry.Item
	for _, name := range []string{"b", "a.x", "c-1"} {
		want = append(want, put(t, s, registry.Item{Kind: "list", Name: name, Data: []byte(name)}))
	}
	put(t, s, registry.Item{Kind: "list2", Name: "b"})
	want[0], want[1] = want[1], want[0]
	items, err := s.List(t.Context(), "list")
	if diff := cmp.Diff(want, items); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
}

func names(t *testing.T, s registry.Store) {
	for _, bad := range [][2]string{
		{"", "a"},
		{"names", ""},
		{"names", "A"},
		{"names", "a/b"},
		{"names", ".."},
		{"names", "a..b"},
		{"names", "-a"},
		{"names", "a\n"},
		{"names", strings.Repeat("a", 201)},
		{"names.x", "a"},
		{"names/", "a"},
		{"Names", "a"},
	} {
		if _, err := s.Put(t.Context(), registry.Item{Kind: bad[0], Name: bad[1]}); err == nil {
			t.Errorf("put of %q was taken", bad)
		}
		if _, err := s.Get(t.Context(), bad[0], bad[1]); err == nil || errors.Is(err, registry.ErrNotFound) {
			t.Errorf("get of %q: %v", bad, err)
		}
		if err := s.Delete(t.Context(), bad[0], bad[1], ""); err == nil || errors.Is(err, registry.ErrNotFound) {
			t.Errorf("delete of %q: %v", bad, err)
		}
	}
	put(t, s, registry.Item{Kind: "names", Name: strings.Repeat(strings.Repeat("a", 63)+".", 3) + "aaaaaaaa"})
}

func data(t *testing.T, s registry.Store) {
	for name, content := range map[string][]byte{"empty": {}, "binary": {0, 255, '\n', 0xc3}, "large": bytes.Repeat([]byte("0123456789abcdef"), 40_000)} {
		item := put(t, s, registry.Item{Kind: "data", Name: name, Data: content})
		got, err := s.Get(t.Context(), "data", name)
		if err != nil || !bytes.Equal(got.Data, content) {
			t.Errorf("%s: %d bytes came back as %d, %v", name, len(content), len(got.Data), err)
		}
		if len(content) > 0 {
			item.Data[0], got.Data[0] = 'x', 'y' // whoever has an item may do with it what he likes
			if again, err := s.Get(t.Context(), "data", name); err != nil || !bytes.Equal(again.Data, content) {
				t.Errorf("%s: the store's own data was altered from outside", name)
			}
		}
	}
}

// race: many add one to the same number by compare-and-swap; none is lost.
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
		t.Fatalf("nobody was told of %s", what)
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
