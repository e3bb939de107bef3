// SPDX-License-Identifier: Apache-2.0

package members_test

import (
	"context"
	"errors"
	"flag"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/control/members"
	"github.com/slipway-project/slipway/internal/etcd/etcdtest"
	"github.com/slipway-project/slipway/internal/testkit"
)

// TestMain lets the tests of real etcd run at once even on few processors: they mostly wait for its timers.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// observe records each list of members that etcd shows, until the function that it returns is called, which returns them.
func observe(t *testing.T, w *world, via string) func() []string {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	client := w.lab.Client(t, via)
	var history []string
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			all, err := client.Members(ctx)
			if line := etcdtest.Votes(all); err == nil && (len(history) == 0 || history[len(history)-1] != line) {
				history = append(history, line)
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	return func() []string {
		stop()
		wg.Wait()
		return history
	}
}

// keeps checks that the written value can be read through each control plane.
func (w *world) keeps(ctx context.Context, value string, by ...string) {
	w.t.Helper()
	for _, name := range by {
		client := w.lab.Client(w.t, name)
		testkit.Until(w.t, time.Minute, "read by "+name, func() error {
			got, err := client.Get(ctx, "k")
			if err == nil && got != value {
				w.t.Errorf("%s: got %q, want %q", name, got, value)
			}
			return err
		})
	}
}

func (w *world) put(ctx context.Context, by, value string) {
	w.t.Helper()
	client := w.lab.Client(w.t, by)
	testkit.Until(w.t, time.Minute, "write by "+by, func() error { return client.Put(ctx, "k", value) })
}

// startAll starts members together: one alone has no quorum and does not become ready.
func (w *world) startAll(names ...string) {
	w.t.Helper()
	var wg sync.WaitGroup
	for _, name := range names {
		wg.Go(func() {
			if err := w.lab.Start(w.t, name, nil, false); err != nil {
				w.t.Error(err)
			}
		})
	}
	wg.Wait()
}

// TK-1, TK-3, TK-4, TK-5: one member forms a cluster, three share its data, and the data survives a stop of all of them
// and the loss of one.
func TestRealOneToThree(t *testing.T) {
	t.Parallel()
	w := newWorld(t, etcdtest.Real(t))
	ctx, stop := context.WithCancel(within(t, 3*time.Minute))
	var runs sync.WaitGroup
	w.run(ctx, &runs, "a")
	w.votes("a", "a:voter")
	w.put(ctx, "a", "one")
	began := time.Now()
	for _, name := range []string{"b", "c"} {
		if err := w.machine(name).join(ctx, w.manager("a")); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("1 → 3 in %s", time.Since(began).Round(time.Millisecond))
	w.votes("c", "a:voter b:voter c:voter")
	w.keeps(ctx, "one", "a", "b", "c")

	for _, name := range []string{"a", "b", "c"} {
		w.lab.Kill(t, name)
	}
	w.startAll("a", "b", "c")
	w.keeps(ctx, "one", "a", "b", "c")

	w.lab.Kill(t, "b")
	w.put(ctx, "c", "two")
	if err := w.manager("a").Leave(ctx, "c"); !errors.Is(err, members.ErrRefused) {
		t.Errorf("c leaves while b is down: got %v, want a refusal", err)
	}
	w.startAll("b")
	w.keeps(ctx, "two", "b", "a", "c")
	stop()
	runs.Wait()
}

// TK-2, TK-6: four more at once join one at a time and make a cluster of five; two leave, one of them the leader; one
// returns.
func TestRealFiveAndBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, etcdtest.Real(t))
	ctx, stop := context.WithCancel(within(t, 4*time.Minute))
	var runs, joins sync.WaitGroup
	w.run(ctx, &runs, "a")
	w.put(ctx, "a", "one")
	seen := observe(t, w, "a")
	began := time.Now()
	for _, name := range []string{"b", "c", "d", "e"} {
		joins.Go(func() {
			if err := w.machine(name).join(ctx, w.manager("a")); err != nil {
				t.Error(err)
			}
		})
	}
	joins.Wait()
	t.Logf("1 → 5 in %s", time.Since(began).Round(time.Millisecond))
	history := seen()
	oneAtATime(t, history)
	if len(history) < 9 { // first one member, then each as a learner and as a voter
		t.Errorf("got members over time %q, want at least 9 lists", history)
	}
	w.votes("e", "a:voter b:voter c:voter d:voter e:voter")
	w.keeps(ctx, "one", "e")
	b := w.manager("b")
	w.run(ctx, &runs, "b")
	for _, name := range []string{"a", "e"} { // a is the leader
		testkit.Until(t, time.Minute, name+" leaves", func() error { // one attempt may coincide with an election
			err := b.Leave(ctx, name)
			if errors.Is(err, members.ErrRefused) {
				t.Fatal(err)
			}
			return err
		})
		w.lab.Kill(t, name)
	}
	w.votes("b", "b:voter c:voter d:voter")
	w.put(ctx, "b", "two")
	back := w.machine("e")
	back.permit = []byte("of its first life")
	if err := back.join(ctx, b); err != nil {
		t.Fatal(err)
	}
	w.keeps(ctx, "two", "b", "c", "d", "e")
	stop()
	runs.Wait()
}

// A joining node dies with its learner running, on real etcd and a real clock: the next one joins soon after the lease
// has expired.
func TestRealDeadJoiner(t *testing.T) {
	t.Parallel()
	w := newWorld(t, etcdtest.Real(t))
	ctx, stop := context.WithCancel(within(t, 3*time.Minute))
	var runs sync.WaitGroup
	w.run(ctx, &runs, "a")
	dead := w.machine("b")
	for dead.permit == nil && ctx.Err() == nil {
		dead.ask(ctx, w.manager("a"))
	}
	w.lab.Kill(t, "b")
	died := time.Now()
	next := w.machine("c")
	if err := next.join(ctx, w.manager("a")); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(died); took > 60*time.Second {
		t.Errorf("got the next one as a voter after %s, want at most 60 s", took)
	}
	again := w.machine("b") // it still has its old data, which is useless
	again.permit = dead.permit
	if err := again.join(ctx, w.manager("a")); err != nil {
		t.Fatal(err)
	}
	w.votes("a", "a:voter b:voter c:voter")
	if len(again.waits) == 0 {
		t.Error("got no wait, want at least one")
	}
	stop()
	runs.Wait()
}
