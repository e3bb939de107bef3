// SPDX-License-Identifier: Apache-2.0

package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/reconcile"
)

func TestBoardSince(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := reconcile.NewBoard()
		begun := time.Now()
		step := &plan.Step{Verb: plan.Create, Why: "it is absent"}
		for i, tc := range []struct {
			set   reconcile.Status
			since time.Duration
		}{
			{reconcile.Status{Phase: reconcile.Doing, For: wait.For{What: "create"}, Step: step}, 0},
			{reconcile.Status{Phase: reconcile.Doing, For: wait.For{What: "create"}}, 0},
			{reconcile.Status{Phase: reconcile.Starting, For: wait.For{What: "a port"}}, 2 * time.Second},
			{reconcile.Status{Phase: reconcile.Starting, For: wait.For{What: "an answer"}}, 3 * time.Second},
			{reconcile.Status{Phase: reconcile.Starting, For: wait.For{What: "an answer"}}, 3 * time.Second},
			{reconcile.Status{Phase: reconcile.Failing, Error: "gone"}, 5 * time.Second},
			{reconcile.Status{Phase: reconcile.Ready}, 6 * time.Second},
			{reconcile.Status{Phase: reconcile.Ready}, 6 * time.Second},
		} {
			tc.set.Ref = "unit/u"
			b.Set(tc.set)
			got := phase(b, "unit/u")
			if got.Since.Sub(begun) != tc.since || got.Phase != tc.set.Phase || got.Step != step {
				t.Errorf("%d: got %+v, want it since %s with its last step", i, got, tc.since)
			}
			time.Sleep(time.Second)
		}
	})
}

// The last error stays on the board while the step is retried.
func TestLastErrorStaysDuringRetry(t *testing.T) {
	t.Parallel()
	b := reconcile.NewBoard()
	for i, tc := range []struct {
		set  reconcile.Status
		want string
	}{
		{reconcile.Status{Phase: reconcile.Doing, For: wait.For{What: "create"}}, ""},
		{reconcile.Status{Phase: reconcile.Failing, Error: "exited with 1"}, "exited with 1"},
		{reconcile.Status{Phase: reconcile.Doing, For: wait.For{What: "create"}}, "exited with 1"},
		{reconcile.Status{Phase: reconcile.Failing, Error: "exited with 2"}, "exited with 2"},
		{reconcile.Status{Phase: reconcile.Doing, For: wait.For{What: "create"}}, "exited with 2"},
		{reconcile.Status{Phase: reconcile.Starting, For: wait.For{What: "an answer"}}, ""},
		{reconcile.Status{Phase: reconcile.Ready}, ""},
		{reconcile.Status{Phase: reconcile.Doing, For: wait.For{What: "replace"}}, ""},
	} {
		tc.set.Ref = "unit/u"
		b.Set(tc.set)
		if got := phase(b, "unit/u"); got.Phase != tc.set.Phase || got.Error != tc.want {
			t.Errorf("%d: got %+v, want error %q", i, got, tc.want)
		}
	}
}

func TestAnnounceKeepsExistingItems(t *testing.T) {
	t.Parallel()
	p := build(func(b *plan.Builder) { b.Add(plan.Dir{Path: "/b"}, b.Add(plan.Dir{Path: "/a"})) })
	b := reconcile.NewBoard()
	b.Announce(p)
	b.Set(reconcile.Status{Ref: "dir//a", Phase: reconcile.Ready})
	b.Announce(p)
	all, _ := b.All()
	want := []reconcile.Status{{Ref: "dir//a", Phase: reconcile.Ready}, {Ref: "dir//b", Phase: reconcile.Waiting, Needs: []string{"dir//a"}}}
	if diff := cmp.Diff(want, all, cmpopts.IgnoreFields(reconcile.Status{}, "Since")); diff != "" {
		t.Errorf("board (-want +got):\n%s", diff)
	}
	b.Reset()
	if all, steps := b.All(); len(all)+steps+len(b.Spans()) != 0 {
		t.Errorf("after Reset: %v", all)
	}
}

// A subscriber that does not read does not block others, and still gets the latest status of each item.
func TestSlowSubscriber(t *testing.T) {
	t.Parallel()
	b := reconcile.NewBoard()
	slow := b.Subscribe()
	defer slow.End()
	ended := b.Subscribe()
	ended.End()
	for i := range 5000 {
		b.Set(reconcile.Status{Ref: fmt.Sprintf("unit/%d", i%10), Phase: reconcile.Starting, For: wait.For{What: fmt.Sprint(i)}})
	}
	b.Set(reconcile.Status{Ref: "unit/3", Phase: reconcile.Ready})
	<-slow.C
	got := slow.Take()
	if len(got) != 10 || got[0].Ref != "unit/0" || got[0].What != "4990" || got[3].Phase != reconcile.Ready {
		t.Errorf("got %v, want the newest status of 10 items", got)
	}
	if len(slow.Take()) != 0 {
		t.Error("Take returned the same changes twice")
	}
	select {
	case <-slow.C:
		t.Error("woken without a change")
	case <-ended.C:
		t.Error("an ended subscription was notified")
	default:
	}
}

func TestBoardConcurrently(t *testing.T) {
	t.Parallel()
	b := reconcile.NewBoard()
	const items, changes = 8, 200
	final := b.Subscribe()
	defer final.End()
	var work sync.WaitGroup
	for i := range items {
		work.Go(func() {
			for n := range changes {
				b.Set(reconcile.Status{Ref: fmt.Sprint(i), Phase: reconcile.Starting, For: wait.For{What: fmt.Sprint(n)}})
			}
			b.Set(reconcile.Status{Ref: fmt.Sprint(i), Phase: reconcile.Ready})
		})
		work.Go(func() {
			s := b.Subscribe()
			defer s.End()
			b.All()
			b.Spans()
			s.Take()
		})
	}
	seen := map[string]reconcile.Phase{}
	for ready := 0; ready < items; {
		<-final.C
		for _, s := range final.Take() {
			if seen[s.Ref] == reconcile.Ready {
				t.Errorf("got %s after ready", s.Phase)
			}
			seen[s.Ref] = s.Phase
			if s.Phase == reconcile.Ready {
				ready++
			}
		}
	}
	work.Wait()
}

func TestAwait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := reconcile.NewBoard()
		b.Set(reconcile.Status{Ref: "a", Phase: reconcile.Waiting})
		b.Set(reconcile.Status{Ref: "b", Phase: reconcile.Waiting})
		var reported []string
		done := make(chan error, 1)
		go func() {
			done <- b.Await(t.Context(), reconcile.IsReady, []string{"a", "b", "not announced"}, func(ref string) { reported = append(reported, ref) })
		}()
		synctest.Wait()
		b.Set(reconcile.Status{Ref: "a", Phase: reconcile.Starting})
		synctest.Wait()
		b.Set(reconcile.Status{Ref: "a", Phase: reconcile.Ready})
		synctest.Wait()
		if len(done) != 0 {
			t.Fatal("Await returned before b was ready")
		}
		b.Set(reconcile.Status{Ref: "b", Phase: reconcile.Ready})
		if err := <-done; err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]string{"a", "b"}, reported); diff != "" {
			t.Errorf("reported (-want +got):\n%s", diff)
		}

		for phase, begun := range map[reconcile.Phase]bool{reconcile.Waiting: false, reconcile.Doing: false, reconcile.Failing: false, reconcile.Starting: true, reconcile.Ready: true} {
			if reconcile.IsStarted(phase) != begun {
				t.Errorf("%s: got IsStarted %t, want the opposite", phase, !begun)
			}
		}
		b.Set(reconcile.Status{Ref: "a", Phase: reconcile.Failing})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := b.Await(ctx, reconcile.IsReady, []string{"a"}, func(string) {}); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	})
}

func TestChangedCounts(t *testing.T) {
	t.Parallel()
	b := reconcile.NewBoard()
	b.CountStep()
	if _, steps := b.All(); steps != 1 {
		t.Errorf("got %d steps, want 1", steps)
	}
}

func TestMarkDownAndUp(t *testing.T) {
	t.Parallel()
	const ref = "unit/etcd"
	phase := func(b *reconcile.Board) reconcile.Phase {
		all, _ := b.All()
		return all[0].Phase
	}
	b := reconcile.NewBoard()
	b.Set(reconcile.Status{Ref: ref, Phase: reconcile.Starting})
	b.MarkDown(ref, "exit code 1", "its supervisor") // the loop works on it
	if got := phase(b); got != reconcile.Starting {
		t.Errorf("down while starting: got %s", got)
	}
	b.Set(reconcile.Status{Ref: ref, Phase: reconcile.Ready})
	b.MarkUp(ref)
	b.MarkDown(ref, "exit code 1", "its supervisor")
	b.MarkDown(ref, "exit code 2", "its supervisor")
	if all, _ := b.All(); all[0].Phase != reconcile.Failing || all[0].Error != "exit code 2" {
		t.Errorf("down twice: got %+v", all[0])
	}
	b.MarkUp(ref)
	if got := phase(b); got != reconcile.Ready {
		t.Errorf("up again: got %s", got)
	}
	b.MarkDown(ref, "exit code 3", "its supervisor")
	b.Reset()
	b.Set(reconcile.Status{Ref: ref, Phase: reconcile.Waiting})
	b.MarkUp(ref)
	if got := phase(b); got != reconcile.Waiting {
		t.Errorf("after Reset: got %s, want waiting", got)
	}
}

// A unit that dies after the loop has observed it ready, but before the loop reports it, is not ready.
func TestDownBeforeTheLoopSaysReady(t *testing.T) {
	t.Parallel()
	const ref = "unit/etcd"
	b := reconcile.NewBoard()
	check := func(when string, want reconcile.Phase) {
		t.Helper()
		if all, _ := b.All(); all[0].Phase != want {
			t.Errorf("%s: got %+v, want %s", when, all[0], want)
		}
	}
	b.Set(reconcile.Status{Ref: ref, Phase: reconcile.Starting})
	b.MarkDown(ref, "exit code 1", "its supervisor")
	check("while the loop works on it", reconcile.Starting)
	b.Set(reconcile.Status{Ref: ref, Phase: reconcile.Ready})
	check("the loop reports ready after the unit went down", reconcile.Failing)
	b.MarkUp(ref)
	check("it is up again", reconcile.Ready)

	b.Set(reconcile.Status{Ref: ref, Phase: reconcile.Starting})
	b.MarkDown(ref, "exit code 1", "its supervisor")
	b.MarkUp(ref)
	b.Set(reconcile.Status{Ref: ref, Phase: reconcile.Ready})
	check("up before the loop reports ready", reconcile.Ready)

	b.MarkDown(ref, "exit code 2", "its supervisor")
	check("down after it was ready", reconcile.Failing)
	b.MarkUp(ref)
	b.Set(reconcile.Status{Ref: ref, Phase: reconcile.Starting})
	b.MarkDown(ref, "stopped", "its supervisor")
	b.Set(reconcile.Status{Ref: ref, Phase: reconcile.Doing})
	b.Set(reconcile.Status{Ref: ref, Phase: reconcile.Ready})
	check("a new step", reconcile.Ready)
}
