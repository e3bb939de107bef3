// SPDX-License-Identifier: Apache-2.0

package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-project/slipway/internal/backend/fake"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// fakeLease is a rollout lease that is acquired when the test opens it.
type fakeLease struct {
	open chan struct{}

	mu     sync.Mutex // guards the fields below
	asked  []string
	passed int
	held   []string
	let    int // how many of them were let go
}

func newLease(isOpen bool) *fakeLease {
	g := &fakeLease{open: make(chan struct{})}
	if isOpen {
		close(g.open)
	}
	return g
}

func (g *fakeLease) Acquire(ctx context.Context, item string, waiting func(wait.For)) (func(), error) {
	g.mu.Lock()
	g.asked = append(g.asked, item)
	g.mu.Unlock()
	waiting(wait.For{What: "n2, which restarts unit/etcd", Who: "n2"})
	select {
	case <-g.open:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.passed++
	}, nil
}

func (g *fakeLease) Keep(item string) func() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = append(g.held, item)
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.let++
	}
}

func (g *fakeLease) holds() (held string, let int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Join(g.held, ", "), g.let
}

func (g *fakeLease) seen() (asked string, passed int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Join(g.asked, ", "), g.passed
}

// shared is a plan with a rolling unit and another one.
func shared(arg string) plan.Plan {
	return build(func(b *plan.Builder) {
		api := unit("api")
		api.Args = append(api.Args, arg)
		ref := b.Rolling(b.Add(api))
		proxy := unit("proxy")
		proxy.Args = append(proxy.Args, arg)
		b.Add(proxy, ref)
	})
}

// rolling is a machine that has the first form of the plan, and a loop for the second.
func rolling(t *testing.T, g *fakeLease) (*fake.Host, *reconcile.Loop) {
	t.Helper()
	h := newFake(t)
	l := newLoop(h)
	l.Rollout = g
	converge(t, l, shared("one"), plan.Plan{})
	if asked, _ := g.seen(); asked != "" {
		t.Fatalf("a first start acquired the lease for %s", asked)
	}
	return h, l
}

func TestReplacedUnderTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newLease(false)
		h, l := rolling(t, g)
		done := make(chan struct{})
		go func() {
			defer close(done)
			converge(t, l, shared("two"), plan.Plan{})
		}()
		time.Sleep(10 * time.Minute)
		if got := phase(l.Board, "unit/api"); got.Phase != reconcile.Waiting || got.What != "the rollout lease: n2, which restarts unit/etcd" || got.Who != "n2" {
			t.Errorf("without the lease the board says %+v", got)
		}
		if h.Starts("api") != 1 || h.Starts("proxy") != 1 {
			t.Errorf("started without the lease: api %d, proxy %d", h.Starts("api"), h.Starts("proxy"))
		}
		close(g.open)
		<-done
		if h.Starts("api") != 2 || h.Starts("proxy") != 2 {
			t.Errorf("with the lease: api %d starts, proxy %d", h.Starts("api"), h.Starts("proxy"))
		}
		if asked, passed := g.seen(); asked != "unit/api" || passed != 1 {
			t.Errorf("asked %q, released %d times", asked, passed)
		}
	})
}

// The lease is held over failed attempts, and released only when the unit is ready.
func TestLeaseIsHeldUntilReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newLease(true)
		h, l := rolling(t, g)
		h.FailDo("unit/api", errors.New("no"), 3)
		h.Behave("api", fake.Behaviour{HoldReady: true})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = l.Converge(ctx, shared("two"), plan.Plan{})
		}()
		time.Sleep(time.Hour)
		if asked, passed := g.seen(); asked != "unit/api" || passed != 0 {
			t.Errorf("asked %q, released %d times before it is ready", asked, passed)
		}
		cancel()
		<-done
		if _, passed := g.seen(); passed != 1 {
			t.Errorf("released %d times when it was given up", passed)
		}
	})
}

// An agent that restarts keeps the lease until the item that the previous agent replaced is ready.
func TestLeaseIsKeptForThePreviousAgent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newLease(false)
		h := newFake(t)
		h.Behave("api", fake.Behaviour{ReadyAfter: time.Hour})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_ = newLoop(h).Converge(ctx, shared("one"), plan.Plan{})
		l := newLoop(h)
		l.Rollout = g
		done := make(chan struct{})
		go func() {
			defer close(done)
			converge(t, l, shared("one"), plan.Plan{})
		}()
		time.Sleep(time.Minute)
		if held, let := g.holds(); held != "unit/api" || let != 0 {
			t.Errorf("before it is ready: holds %q, let %d go", held, let)
		}
		<-done
		if held, let := g.holds(); held != "unit/api" || let != 1 {
			t.Errorf("when it is ready: holds %q, let %d go", held, let)
		}
	})
}

// The lease is kept from the first moment: an item that waits for its needs is not observed for a long time.
func TestLeaseIsKeptBeforeItsNeeds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newLease(false)
		h, l := rolling(t, g)
		h.FailObserve("unit/api", errors.New("a slow disk"), 1000)
		ctx, cancel := context.WithCancel(t.Context())
		want := shared("one")
		want.Entries[len(want.Entries)-1].Rolling = true // needs the API
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = l.Converge(ctx, want, plan.Plan{})
		}()
		time.Sleep(time.Second)
		if held, let := g.holds(); !strings.HasSuffix(held, "unit/api, unit/proxy") || let != 1 { // of the first form
			t.Errorf("holds %q, let %d go", held, let)
		}
		cancel()
		<-done
		if held, let := g.holds(); let != 3 {
			t.Errorf("given up: holds %q, let %d go", held, let)
		}
	})
}

// An item that dies while it waits for the lease waits no longer.
func TestDownNeedsNoLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newLease(false)
		h, l := rolling(t, g)
		go func() {
			time.Sleep(time.Minute)
			h.Behave("api", fake.Behaviour{Exit: true}) // it dies at each start
			h.Crash("api")
			time.Sleep(10 * time.Second)
			h.Behave("api", fake.Behaviour{})
		}()
		began := time.Now()
		converge(t, l, shared("two"), plan.Plan{})
		if took := time.Since(began); took < time.Minute || took > 3*time.Minute {
			t.Errorf("converged after %s", took)
		}
		if _, passed := g.seen(); passed != 0 {
			t.Errorf("a lease that was never acquired was released %d times", passed)
		}
	})
}

// Ten inputs that change in one run are one restart, whichever of them are settled last.
func TestManyChangesOneRestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newFake(t)
		many := func(content string) plan.Plan {
			return build(func(b *plan.Builder) {
				var inputs []plan.Ref
				for i := range 10 {
					inputs = append(inputs, b.Add(plan.File{Path: fmt.Sprintf("/pki-%d", i), Mode: 0o600, Content: content}))
				}
				first := b.Add(unit("etcd", inputs[:5]...), inputs[:5]...)
				b.Add(unit("api", inputs...), append(inputs, first)...)
			})
		}
		l := newLoop(h)
		converge(t, l, many("old"), plan.Plan{})
		for i := range 10 {
			h.FailDo(fmt.Sprintf("file//pki-%d", i), errors.New("disk is slow"), i)
		}
		converge(t, l, many("new"), plan.Plan{})
		converge(t, l, many("new"), plan.Plan{})
		if h.Starts("etcd") != 2 || h.Starts("api") != 2 {
			t.Errorf("etcd %d starts, api %d: want two each", h.Starts("etcd"), h.Starts("api"))
		}
	})
}
