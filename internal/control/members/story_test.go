// SPDX-License-Identifier: Apache-2.0

package members_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-project/slipway/internal/control/members"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/etcd/etcdfake"
	"github.com/slipway-project/slipway/internal/etcd/etcdtest"
)

// story runs a test in a world in memory with a fake clock.
func story(t *testing.T, tell func(t *testing.T, w *world, etcd *etcdfake.Cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdfake.New()
		etcd.CatchUp, etcd.Settle = 300*time.Millisecond, 5*time.Second
		tell(t, newWorld(t, etcdtest.Memory{Cluster: etcd}), etcd)
	})
}

// within returns the test's context with a timeout.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// oneAtATime checks that each list of members differs from the one before in one thing only.
func oneAtATime(t *testing.T, history []string) {
	t.Helper()
	for i, line := range history {
		if strings.Count(line, ":learner") > 1 {
			t.Errorf("got two changes at once: %q, after %q", line, history[max(0, i-1)])
		}
	}
}

func TestFiveAtOnceGetIn(t *testing.T) {
	t.Parallel()
	story(t, func(t *testing.T, w *world, etcd *etcdfake.Cluster) {
		ctx, stop := context.WithCancel(within(t, 2*time.Minute))
		var runs, joins sync.WaitGroup
		w.run(ctx, &runs, "a")
		for _, name := range []string{"b", "c", "d", "e"} {
			joins.Go(func() {
				if err := w.machine(name).join(ctx, w.manager("a")); err != nil {
					t.Error(err)
				}
			})
		}
		began := time.Now()
		joins.Wait()
		if took := time.Since(began); took > 30*time.Second { // etcd needs five seconds before each of them
			t.Errorf("got four joins in %s, want at most 30 s", took)
		}
		w.votes("a", "a:voter b:voter c:voter d:voter e:voter")
		oneAtATime(t, etcd.History())
		stop()
		runs.Wait()
	})
}

// A joining node dies after each single answer that it gets. Its lease ends in less than 20 seconds, another node joins,
// and so does the node itself when it is on again, with its data or without.
func TestDeadJoinerFreesTheLease(t *testing.T) {
	t.Parallel()
	for moment := 1; moment <= 6; moment++ {
		for _, on := range []string{"the same control plane", "another control plane"} {
			for _, disk := range []string{"kept", "empty"} {
				t.Run(fmt.Sprintf("after answer %d, on %s, disk %s", moment, on, disk), func(t *testing.T) {
					t.Parallel()
					story(t, func(t *testing.T, w *world, etcd *etcdfake.Cluster) {
						deadJoiner(t, w, etcd, moment, on == "another control plane", disk == "kept")
					})
				})
			}
		}
	}
}

func deadJoiner(t *testing.T, w *world, etcd *etcdfake.Cluster, moment int, elsewhere, keep bool) {
	ctx, stop := context.WithCancel(within(t, 10*time.Minute))
	var runs sync.WaitGroup
	stopA := w.run(ctx, &runs, "a")
	for _, name := range []string{"b", "c"} {
		if err := w.machine(name).join(ctx, w.manager("a")); err != nil {
			t.Fatal(err)
		}
	}
	w.run(ctx, &runs, "b")
	time.Sleep(6 * time.Second) // fake clock: etcd settles
	dead := w.machine("d")
	for range moment {
		if dead.ask(ctx, w.manager("a")) {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	died := time.Now()
	etcd.Kill("d")
	if elsewhere {
		stopA() // the control plane that it asked stops as well
	}
	votes, via := strings.Contains(last(etcd), "d:voter"), w.manager("b")
	if votes {
		etcd.Kill("d") // the lease is released: it is an ordinary voter that is down
	} else {
		other := w.machine("e")
		for other.permit == nil && ctx.Err() == nil {
			other.ask(ctx, via)
			time.Sleep(200 * time.Millisecond)
		}
		if took := time.Since(died); took > 20*time.Second {
			t.Errorf("got the next learner after %s, want at most 20 s", took)
		}
		if err := other.join(ctx, via); err != nil {
			t.Fatal(err)
		}
	}
	again := w.machine("d")
	if keep {
		again.permit = dead.permit
		_ = w.lab.Start(t, "d", nil, false) // runs with the data that it has
	} else if !votes {
		etcd.Wipe("d")
	} else {
		_ = w.lab.Start(t, "d", nil, false)
	}
	if err := again.join(ctx, via); err != nil {
		t.Fatal(err)
	}
	oneAtATime(t, etcd.History())
	stop()
	runs.Wait()
}

// A joining node that waits continues through another control plane: the first one stops reporting that it waits.
func TestWaitEndsElsewhere(t *testing.T) {
	t.Parallel()
	story(t, func(t *testing.T, w *world, _ *etcdfake.Cluster) {
		ctx := within(t, 10*time.Minute)
		if err := w.machine("b").join(ctx, w.manager("a")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Second) // the clock is the test's: etcd settles
		waits := func(node string) *wait.For {
			state, err := w.manager("a").Status(ctx)
			if err != nil {
				t.Fatal(err)
			}
			return state[node].Wait
		}
		c, d := w.machine("c"), w.machine("d")
		for _, one := range []*machine{c, d, c} { // gets the permit; must wait for the lease; has not caught up
			one.ask(ctx, w.manager("a"))
		}
		if waits("c") == nil || waits("d") == nil {
			t.Fatalf("got waits %v of c and %v of d, want both", waits("c"), waits("d"))
		}
		if err := c.join(ctx, w.manager("b")); err != nil {
			t.Fatal(err)
		}
		if wait := waits("c"); wait != nil {
			t.Errorf("a voter: got wait %+v, want none", wait)
		}
		time.Sleep(20 * time.Second)
		if wait := waits("d"); wait != nil {
			t.Errorf("a node that no longer asks: got wait %+v, want none", wait)
		}
	})
}

// Answers of etcd and of the records are lost, or requests fail, all the time: all nodes join, one at a time.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			story(t, func(t *testing.T, w *world, etcd *etcdfake.Cluster) { lostAnswers(t, w, etcd, seed) })
		})
	}
}

func TestLeave(t *testing.T) {
	t.Parallel()
	story(t, func(t *testing.T, w *world, etcd *etcdfake.Cluster) {
		ctx := within(t, 10*time.Minute)
		m := w.manager("a")
		if err := m.Leave(ctx, "a"); !errors.Is(err, members.ErrRefused) || !strings.Contains(err.Error(), "last voter") {
			t.Errorf("the last voter leaves: got %v, want a refusal", err)
		}
		for _, name := range []string{"b", "c"} {
			if err := w.machine(name).join(ctx, m); err != nil {
				t.Fatal(err)
			}
		}
		etcd.Kill("c")
		if err := m.Leave(ctx, "b"); !errors.Is(err, members.ErrRefused) || !strings.Contains(err.Error(), "1 of 2 voters") {
			t.Errorf("one of three leaves while another is down: got %v, want a refusal", err)
		}
		if err := m.MayLeave(ctx, "b"); !errors.Is(err, members.ErrRefused) {
			t.Errorf("whether it may leave: got %v, want a refusal", err)
		}
		if err := m.MayLeave(ctx, "c"); err != nil {
			t.Errorf("whether the one that is down may leave: %v", err)
		}
		w.votes("a", "a:voter b:voter c:voter")
		if err := m.Leave(ctx, "c"); err != nil { // the one that is down may leave
			t.Fatal(err)
		}
		w.votes("a", "a:voter b:voter")
		time.Sleep(6 * time.Second)
		var did []string
		etcd.Fault = func(_ context.Context, moment string) error {
			did = append(did, moment)
			return nil
		}
		if err := m.Leave(ctx, "a"); err != nil { // the leader, through its own member
			t.Fatal(err)
		}
		if got := strings.Join(did, ", "); got != "move leader before, move leader after, remove before, remove after" {
			t.Errorf("got steps %s", got)
		}
		etcd.Fault = func(_ context.Context, moment string) error { // the next join does not get the answer that its learner was added
			if moment == "add after" {
				return errors.New("the answer was lost")
			}
			return nil
		}
		w.votes("b", "b:voter")
		if err := w.manager("b").Leave(ctx, "a"); err != nil {
			t.Errorf("a node that has left leaves again: %v", err)
		}
		back := w.machine("c") // with the data of the removed member
		back.permit = []byte("old")
		if err := back.join(ctx, w.manager("b")); err != nil {
			t.Fatal(err)
		}
		w.votes("b", "b:voter c:voter")
		etcd.Fault = nil
		first := w.machine("a") // it has never joined, but it has left
		first.permit = []byte("old")
		if err := first.join(ctx, w.manager("b")); err != nil {
			t.Fatal(err)
		}
	})
}

// A node that is told to leave in the middle of its join leaves, and its join does not continue.
func TestLeaveEndsAJoin(t *testing.T) {
	t.Parallel()
	story(t, func(t *testing.T, w *world, etcd *etcdfake.Cluster) {
		ctx := within(t, time.Second)
		m, b := w.manager("a"), w.machine("b")
		b.ask(ctx, m)
		if got := etcd.History(); got[len(got)-1] != "a:voter b:learner" {
			t.Fatal(got)
		}
		if err := m.Leave(ctx, "b"); err != nil {
			t.Fatal(err)
		}
		w.votes("a", "a:voter")
		node := b.node
		node.Removing = true
		if answer, err := m.Admit(ctx, node, true); err == nil {
			t.Errorf("a node that is being removed: got %+v, want an error", answer)
		}
	})
}
