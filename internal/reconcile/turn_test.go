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
	"github.com/slipway-project/slipway/internal/reconcile"
)

// gate is a turn that is given when the test opens it.
type gate struct {
	open chan struct{}

	mu     sync.Mutex // guards the fields below
	asked  []string
	passed int
	held   []string
	let    int // how many of them were let go
}

func newGate(isOpen bool) *gate {
	g := &gate{open: make(chan struct{})}
	if isOpen {
		close(g.open)
	}
	return g
}

func (g *gate) Take(ctx context.Context, turn, item string, waiting func(reason, provider string)) (func(), error) {
	g.mu.Lock()
	g.asked = append(g.asked, turn+" "+item)
	g.mu.Unlock()
	waiting("n2 restarts unit/etcd", "n2")
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

func (g *gate) Hold(turn, item string) func() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = append(g.held, turn+" "+item)
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.let++
	}
}

func (g *gate) holds() (held string, let int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Join(g.held, ", "), g.let
}

func (g *gate) seen() (asked string, passed int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Join(g.asked, ", "), g.passed
}

// shared is a plan of which one unit is exchanged in turn, and one is not.
func shared(arg string) plan.Plan {
	return build(func(b *plan.Builder) {
		api := unit("api")
		api.Args = append(api.Args, arg)
		ref := b.InTurn(b.Add(api), "control-plane")
		proxy := unit("proxy")
		proxy.Args = append(proxy.Args, arg)
		b.Add(proxy, ref)
	})
}

// inTurn is a machine that has the first form of the plan, and a loop for the second.
func inTurn(t *testing.T, g *gate) (*fake.Host, *reconcile.Loop) {
	t.Helper()
	h := newFake(t)
	l := newLoop(h)
	l.Turn = g
	converge(t, l, shared("one"), plan.Plan{})
	if asked, _ := g.seen(); asked != "" {
		t.Fatalf("a first start asked for a turn: %s", asked)
	}
	return h, l
}

func TestExchangedInTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(false)
		h, l := inTurn(t, g)
		done := make(chan struct{})
		go func() {
			defer close(done)
			converge(t, l, shared("two"), plan.Plan{})
		}()
		time.Sleep(10 * time.Minute)
		if got := phase(l.Board, "unit/api"); got.Phase != reconcile.Waiting || got.For != "its turn: n2 restarts unit/etcd" || got.Provider != "n2" {
			t.Errorf("before its turn the board says %+v", got)
		}
		if h.Starts("api") != 1 || h.Starts("proxy") != 1 {
			t.Errorf("started before the turn: api %d, proxy %d", h.Starts("api"), h.Starts("proxy"))
		}
		close(g.open)
		<-done
		if h.Starts("api") != 2 || h.Starts("proxy") != 2 {
			t.Errorf("after the turn: api %d starts, proxy %d", h.Starts("api"), h.Starts("proxy"))
		}
		if asked, passed := g.seen(); asked != "control-plane unit/api" || passed != 1 {
			t.Errorf("asked %q, passed %d times", asked, passed)
		}
	})
}

// The turn is held over failed attempts, and passed on only when the unit is ready.
func TestTurnIsHeldUntilReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(true)
		h, l := inTurn(t, g)
		h.FailDo("unit/api", errors.New("no"), 3)
		h.Behave("api", fake.Behaviour{HoldReady: true})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = l.Converge(ctx, shared("two"), plan.Plan{})
		}()
		time.Sleep(time.Hour)
		if asked, passed := g.seen(); asked != "control-plane unit/api" || passed != 0 {
			t.Errorf("asked %q, passed %d times before it is ready", asked, passed)
		}
		cancel()
		<-done
		if _, passed := g.seen(); passed != 1 {
			t.Errorf("passed %d times when it was given up", passed)
		}
	})
}

// An agent that begins anew over an item that its predecessor exchanged has the turn kept until that item is ready.
func TestTurnIsHeldForThePredecessor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(false)
		h := newFake(t)
		h.Behave("api", fake.Behaviour{ReadyAfter: time.Hour})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_ = newLoop(h).Converge(ctx, shared("one"), plan.Plan{})
		l := newLoop(h)
		l.Turn = g
		done := make(chan struct{})
		go func() {
			defer close(done)
			converge(t, l, shared("one"), plan.Plan{})
		}()
		time.Sleep(time.Minute)
		if held, let := g.holds(); held != "control-plane unit/api" || let != 0 {
			t.Errorf("before it is ready: holds %q, let %d go", held, let)
		}
		<-done
		if held, let := g.holds(); held != "control-plane unit/api" || let != 1 {
			t.Errorf("when it is ready: holds %q, let %d go", held, let)
		}
	})
}

// It is held from the first moment: what waits for its needs, or for what is taken away first, is not looked at for long.
func TestTurnIsHeldBeforeItsNeeds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(false)
		h, l := inTurn(t, g)
		h.FailObserve("unit/api", errors.New("a slow disk"), 1000)
		ctx, cancel := context.WithCancel(t.Context())
		want := shared("one")
		want.Entries[len(want.Entries)-1].Turn = "control-plane" // needs the API
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = l.Converge(ctx, want, plan.Plan{})
		}()
		time.Sleep(time.Second)
		if held, let := g.holds(); !strings.HasSuffix(held, "control-plane unit/api, control-plane unit/proxy") || let != 1 { // of the first form
			t.Errorf("holds %q, let %d go", held, let)
		}
		cancel()
		<-done
		if held, let := g.holds(); let != 3 {
			t.Errorf("given up: holds %q, let %d go", held, let)
		}
	})
}

// What dies while it waits for its turn waits no longer.
func TestWhatIsDownNeedsNoTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(false)
		h, l := inTurn(t, g)
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
			t.Errorf("a turn that was never had was passed on %d times", passed)
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
