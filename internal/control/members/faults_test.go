// SPDX-License-Identifier: Apache-2.0

package members_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/control/registry/registrytest"
	"github.com/slipway-project/slipway/internal/etcd/etcdfake"
)

func lostAnswers(t *testing.T, w *world, etcd *etcdfake.Cluster, seed uint64) {
	ctx, stop := context.WithCancel(within(t, 10*time.Minute))
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(seed, 7)) //nolint:gosec // a test
	some := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return r.IntN(4) == 0
	}
	lost := errors.New("the answer was lost")
	etcd.Fault = func(context.Context, string) error {
		if some() {
			return lost
		}
		return nil
	}
	w.store.SetFault(func(registrytest.Op) registrytest.Fault {
		switch {
		case some():
			return registrytest.Fault{Err: lost}
		case some():
			return registrytest.Fault{Lost: lost}
		}
		return registrytest.Fault{}
	})
	var runs, joins sync.WaitGroup
	w.run(ctx, &runs, "a")
	for _, name := range []string{"b", "c", "d", "e"} {
		joins.Go(func() {
			if err := w.machine(name).join(ctx, w.manager("a")); err != nil {
				t.Error(err)
			}
		})
	}
	joins.Wait()
	w.votes("a", "a:voter b:voter c:voter d:voter e:voter")
	oneAtATime(t, etcd.History())
	stop()
	runs.Wait()
}

// A learner that no lease mentions is removed after a grace period; a voter without a record stays.
func TestOrphans(t *testing.T) {
	t.Parallel()
	story(t, func(t *testing.T, w *world, etcd *etcdfake.Cluster) {
		ctx, stop := context.WithCancel(within(t, time.Hour))
		var runs sync.WaitGroup
		w.hidden = "b"
		w.run(ctx, &runs, "a")
		if err := w.machine("b").join(ctx, w.manager("a")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if _, _, err := w.lab.Client(t, "a").AddLearner(ctx, w.lab.Peer("x")); err != nil {
			t.Fatal(err)
		}
		added := time.Now()
		for strings.Contains(last(etcd), "learner") && ctx.Err() == nil {
			time.Sleep(time.Second)
		}
		if took := time.Since(added); took < 10*time.Second || took > 20*time.Second {
			t.Errorf("got the orphan removed after %s, want 10 s to 20 s", took)
		}
		time.Sleep(30 * time.Minute)
		w.votes("a", "a:voter b:voter")
		state, err := w.manager("a").Status(ctx)
		if err != nil || !state["b"].Unknown || state["b"].Member != "voter" || state["a"].Unknown || !state["a"].Leader {
			t.Errorf("%+v, %v", state, err)
		}
		// The same while a join waits.
		if _, _, err := w.lab.Client(t, "a").AddLearner(ctx, w.lab.Peer("x")); err != nil {
			t.Fatal(err)
		}
		if err := w.machine("c").join(within(t, 30*time.Second), w.manager("a")); err != nil {
			t.Fatal(err)
		}
		oneAtATime(t, etcd.History())
		stop()
		runs.Wait()
	})
}

// Without another join, the control planes themselves clear the lease of a joining node that died.
func TestRunClears(t *testing.T) {
	t.Parallel()
	story(t, func(t *testing.T, w *world, etcd *etcdfake.Cluster) {
		ctx, stop := context.WithCancel(within(t, time.Hour))
		var runs sync.WaitGroup
		w.run(ctx, &runs, "a")
		b := w.machine("b")
		for b.ask(ctx, w.manager("a")); b.permit == nil && ctx.Err() == nil; b.ask(ctx, w.manager("a")) {
			time.Sleep(200 * time.Millisecond) // the first try loses: the control plane has just written the lease
		}
		if got := last(etcd); got != "a:voter b:learner" {
			t.Fatal(got)
		}
		died := time.Now()
		etcd.Kill("b")
		for last(etcd) != "a:voter" && ctx.Err() == nil {
			time.Sleep(100 * time.Millisecond)
		}
		if took := time.Since(died); took < 15*time.Second || took > 20*time.Second {
			t.Errorf("got its learner removed after %s, want 15 s to 20 s", took)
		}
		stop()
		runs.Wait()
	})
}

// A joining node returns at the moment at which its learner is removed: it is not promoted, and starts from scratch.
func TestBackWhileCleared(t *testing.T) {
	t.Parallel()
	story(t, func(t *testing.T, w *world, etcd *etcdfake.Cluster) {
		ctx := within(t, time.Minute)
		if err := w.machine("c").join(ctx, w.manager("a")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Second)
		b, m := w.machine("b"), w.manager("a")
		b.ask(ctx, m)
		time.Sleep(time.Minute / 4)
		asked := false
		etcd.Fault = func(_ context.Context, moment string) error {
			if moment == "remove before" && !asked {
				asked = true
				if answer, err := w.manager("c").Admit(ctx, b.node, true); err != nil || answer.Wait == nil {
					t.Errorf("got %+v, %v, want a wait", answer, err)
				}
			}
			return nil
		}
		w.machine("d").ask(ctx, m)
		w.votes("a", "a:voter c:voter")
		if err := b.join(ctx, m); err != nil || !asked {
			t.Fatal(asked, err)
		}
		w.votes("a", "a:voter b:voter c:voter")
	})
}

func last(etcd *etcdfake.Cluster) string {
	history := etcd.History()
	return history[len(history)-1]
}

// A joining node that sends heartbeats and makes no progress loses its lease after ten minutes, and others go first.
func TestNoProgress(t *testing.T) {
	t.Parallel()
	story(t, func(t *testing.T, w *world, etcd *etcdfake.Cluster) {
		ctx := within(t, time.Hour)
		m := w.manager("a")
		began := time.Now()
		b := w.node("b")
		for !strings.Contains(last(etcd), w.lab.Peer("c")) {
			if _, err := m.Admit(ctx, b, false); err != nil { // its etcd never starts
				t.Fatal(err)
			}
			if _, err := m.Admit(ctx, w.node("c"), false); err != nil {
				t.Fatal(err)
			}
			time.Sleep(200 * time.Millisecond)
			if time.Since(began) > 20*time.Minute {
				t.Fatal("the lease was not released in 20 minutes")
			}
		}
		if took := time.Since(began); took < 10*time.Minute || took > 11*time.Minute {
			t.Errorf("got a wait of %s, want 10 to 11 minutes", took)
		}
	})
}

// Without a quorum nothing changes, and every answer is an error or a wait. When the quorum is back, joins continue.
func TestNoQuorum(t *testing.T) {
	t.Parallel()
	story(t, func(t *testing.T, w *world, etcd *etcdfake.Cluster) {
		ctx := within(t, time.Hour)
		m := w.manager("a")
		if err := w.machine("b").join(ctx, m); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Second)
		etcd.Cut("b")
		before, c := len(etcd.History()), w.machine("c")
		for range 100 {
			if answer, err := m.Admit(ctx, c.node, false); err == nil && answer.Wait == nil {
				t.Fatalf("without a quorum: got %+v, want an error or a wait", answer)
			}
		}
		if got := etcd.History(); len(got) != before {
			t.Errorf("without a quorum: got changes %q, want none", got[before:])
		}
		etcd.Heal("b")
		if err := c.join(ctx, m); err != nil {
			t.Fatal(err)
		}
		// One of three is down: a fourth would need three.
		etcd.Kill("c")
		d := w.machine("d")
		for range 50 {
			d.ask(ctx, m)
			time.Sleep(time.Second)
		}
		w.votes("a", "a:voter b:voter c:voter")
		if !d.waits["voter c (2 of 3 voters are healthy; adding a fourth voter needs 3)"] {
			t.Errorf("got waits %v", d.waits)
		}
		if err := w.lab.Start(t, "c", nil, false); err != nil {
			t.Fatal(err)
		}
		if err := d.join(ctx, m); err != nil {
			t.Fatal(err)
		}
	})
}
