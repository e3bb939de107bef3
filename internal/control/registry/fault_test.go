// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/control/registry/registrytest"
	"github.com/slipway-project/slipway/internal/core/admission"
)

var errPower = errors.New("the power is off")

// at makes the n-th write and all later ones fail, as if the process had died.
func at(n int, f registrytest.Fault) func(registrytest.Op) registrytest.Fault {
	var mu sync.Mutex
	seen := 0
	return func(op registrytest.Op) registrytest.Fault {
		mu.Lock()
		defer mu.Unlock()
		if op.Verb == "put" || op.Verb == "delete" {
			seen++
		}
		switch {
		case seen == n && (op.Verb == "put" || op.Verb == "delete"):
			return f
		case seen > n || seen == n && op.Verb != "put":
			return registrytest.Fault{Err: errPower}
		}
		return registrytest.Fault{}
	}
}

// The control plane dies before or after each write of an admission. Another one completes it for the same machine only.
func TestAdmitOverCrashes(t *testing.T) {
	t.Parallel()
	for write := 1; write <= 2; write++ {
		for name, fault := range map[string]registrytest.Fault{"before": {Err: errPower}, "after": {Lost: errPower}} {
			store := registrytest.NewMemory()
			first, second := begun(t, store, start), begun(t, store, start)
			token, _, err := first.CreateToken(t.Context(), registry.TokenSpec{Pool: "worker"})
			if err != nil {
				t.Fatal(err)
			}
			store.SetFault(at(write, fault))
			if _, err := first.Admit(t.Context(), join(6, token.ID)); !errors.Is(err, errPower) {
				t.Fatalf("write %d, %s: %v", write, name, err)
			}
			store.SetFault(nil)
			used := write == 2 || fault.Lost != nil
			if used {
				if _, err := second.Admit(t.Context(), join(7, token.ID)); reasonOf(err) != admission.TokenUsed {
					t.Errorf("write %d, %s: another machine: %v", write, name, err)
				}
			}
			n, err := second.Admit(t.Context(), join(6, token.ID))
			if err != nil || n.Name != "dev-worker-0" || n.Index != 255 {
				t.Errorf("write %d, %s: %+v, %v", write, name, n, err)
			}
			if again, err := first.Admit(t.Context(), join(6, "")); err != nil || again != n {
				t.Errorf("write %d, %s: again %+v, %v", write, name, again, err)
			}
		}
	}
}

// Many machines ask several control planes until they are admitted. The store is slow, fails, and loses answers. Time is simulated.
func TestAdmitOnABadStore(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) { badStore(t, seed) })
	}
}

func badStore(t *testing.T, seed uint64) {
	const machines = 30
	store := registrytest.NewMemory()
	planes := []*registry.Registry{begun(t, store, time.Now), begun(t, store, time.Now), begun(t, store, time.Now)}
	var tokens [machines]string
	for i := range tokens {
		token, _, err := planes[0].CreateToken(t.Context(), registry.TokenSpec{Pool: "worker"})
		if err != nil {
			t.Fatal(err)
		}
		tokens[i] = token.ID
	}
	var mu sync.Mutex
	dice := rand.New(rand.NewPCG(seed, 1))
	store.SetFault(func(registrytest.Op) registrytest.Fault {
		mu.Lock()
		defer mu.Unlock()
		f := registrytest.Fault{Delay: time.Duration(dice.IntN(20)) * time.Millisecond}
		switch dice.IntN(8) {
		case 0:
			f.Err = errPower
		case 1:
			f.Lost = errPower
		}
		return f
	})
	nodes := make([]admission.Node, machines)
	var wg sync.WaitGroup
	for i := range machines {
		wg.Go(func() { nodes[i] = knock(t, planes, i, tokens[i]) })
	}
	wg.Wait()
	store.SetFault(nil)
	apart(t, planes[1], nodes)
}

// knock asks one control plane after the other until the machine is admitted.
func knock(t *testing.T, planes []*registry.Registry, i int, token string) admission.Node {
	for try := range 10_000 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		n, err := planes[(i+try)%len(planes)].Admit(ctx, join(i+1, token))
		cancel()
		if err == nil {
			return n
		}
		if reasonOf(err) != "" {
			t.Errorf("machine %d: %v", i, err)
			return n
		}
	}
	t.Errorf("machine %d was never admitted", i)
	return admission.Node{}
}

func apart(t *testing.T, r *registry.Registry, admitted []admission.Node) {
	t.Helper()
	all, err := r.Nodes(t.Context())
	if err != nil || len(all) != len(admitted)+1 {
		t.Fatalf("%d records for %d machines, %v", len(all), len(admitted), err)
	}
	indexes, names := map[int]bool{}, map[string]bool{}
	for _, n := range all {
		indexes[n.Index], names[n.Name] = true, true
	}
	if len(indexes) != len(all) || len(names) != len(all) {
		t.Errorf("%d records, %d indexes, %d names", len(all), len(indexes), len(names))
	}
	for i, n := range admitted {
		if got, ok, err := r.ByKey(t.Context(), testPin(i+1)); err != nil || !ok || got != n {
			t.Errorf("machine %d got %+v, its record is %+v, error %v", i, n, got, err)
		}
	}
}

// A store that does not answer does not count as empty.
func TestNoAnswerIsNotEmpty(t *testing.T) {
	t.Parallel()
	store := registrytest.NewMemory()
	r := begun(t, store, start)
	store.SetFault(func(registrytest.Op) registrytest.Fault { return registrytest.Fault{Err: errPower} })
	if nodes, err := r.Nodes(t.Context()); !errors.Is(err, errPower) || errors.Is(err, registry.ErrNotFound) {
		t.Errorf("nodes %v, %v", nodes, err)
	}
	if _, known, err := r.ByKey(t.Context(), testPin(6)); !errors.Is(err, errPower) || known {
		t.Errorf("by key: %v", err)
	}
	if tokens, err := r.Tokens(t.Context()); !errors.Is(err, errPower) {
		t.Errorf("tokens %v, %v", tokens, err)
	}
	if _, ok, err := r.Token(t.Context(), "abcdefgh"); !errors.Is(err, errPower) || ok {
		t.Errorf("token: %v", err)
	}
	if _, err := r.Admit(t.Context(), join(6, "")); !errors.Is(err, errPower) || reasonOf(err) != "" {
		t.Errorf("admit: %v", err)
	}
}

// If the document was deleted, damaged or never written, no pod CIDR is assigned.
func TestDamagedRecords(t *testing.T) {
	t.Parallel()
	for name, data := range map[string]string{
		"gone": "", "no head": "{}\n", "newer": "{\"slipwayNodes\":2}\n", "cut": "{\"slipwayNodes\":1}\n{\"node\":{\"na", "unknown field": "{\"slipwayNodes\":1}\n{\"node\":{\"name\":\"a\",\"more\":1}}\n",
		"no record": "{\"slipwayNodes\":1}\n{}\n", "twice": "{\"slipwayNodes\":1}\n{\"node\":{\"name\":\"a\"}}\n{\"node\":{\"name\":\"a\"}}\n",
		"order": "{\"slipwayNodes\":1}\n{\"node\":{\"name\":\"b\"}}\n{\"node\":{\"name\":\"a\"}}\n", "two on a line": "{\"slipwayNodes\":1}\n{\"removed\":{\"name\":\"b\",\"at\":\"2026-11-20T12:00:00Z\"}} {}\n",
	} {
		store := registrytest.NewMemory()
		r := begun(t, store, start)
		token, _, err := r.CreateToken(t.Context(), registry.TokenSpec{Pool: "worker"})
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Delete(t.Context(), "nodes", "all", ""); err != nil {
			t.Fatal(err)
		}
		if data != "" {
			if _, err := store.Put(t.Context(), registry.Item{Kind: "nodes", Name: "all", Data: []byte(data)}); err != nil {
				t.Fatal(err)
			}
		}
		n, err := r.Admit(t.Context(), join(6, token.ID))
		if err == nil {
			t.Errorf("%s: admitted as %+v", name, n)
		}
		if nodes, err := r.Nodes(t.Context()); err == nil {
			t.Errorf("%s: nodes %v", name, nodes)
		}
		if data == "" {
			continue
		}
		if err := r.Register(t.Context(), []admission.Node{mainNode()}); err == nil {
			t.Errorf("%s: it was overwritten", name)
		}
	}
}

// A shared read ends for each reader as a read of its own would.
func TestSharedReads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := registrytest.NewMemory()
		r := begun(t, store, time.Now)
		var mu sync.Mutex
		gets := 0
		store.SetFault(func(op registrytest.Op) registrytest.Fault {
			mu.Lock()
			defer mu.Unlock()
			gets++
			return registrytest.Fault{Delay: time.Second}
		})
		impatient, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				ctx := t.Context()
				if i%3 == 0 {
					ctx = impatient
				}
				nodes, err := r.Nodes(ctx)
				if i%3 == 0 && !errors.Is(err, context.DeadlineExceeded) || i%3 != 0 && (err != nil || len(nodes) != 1) {
					t.Errorf("reader %d: %v, %v", i, nodes, err)
				}
			})
		}
		wg.Wait()
		if gets > 6 {
			t.Errorf("%d reads for 100 readers", gets)
		}
	})
}
