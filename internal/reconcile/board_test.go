// SPDX-License-Identifier: Apache-2.0

package reconcile_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/slipway-project/slipway/internal/core/plan"
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
			{reconcile.Status{Phase: reconcile.Doing, For: "create", Step: step}, 0},
			{reconcile.Status{Phase: reconcile.Doing, For: "create"}, 0},
			{reconcile.Status{Phase: reconcile.Starting, For: "a port"}, 2 * time.Second},
			{reconcile.Status{Phase: reconcile.Starting, For: "an answer"}, 3 * time.Second},
			{reconcile.Status{Phase: reconcile.Starting, For: "an answer"}, 3 * time.Second},
			{reconcile.Status{Phase: reconcile.Failing, Error: "gone"}, 5 * time.Second},
			{reconcile.Status{Phase: reconcile.Ready}, 6 * time.Second},
			{reconcile.Status{Phase: reconcile.Ready}, 6 * time.Second},
		} {
			tc.set.Ref = "unit/u"
			b.Set(tc.set)
			got := phase(b, "unit/u")
			if got.Since.Sub(begun) != tc.since || got.Phase != tc.set.Phase || got.Step != step {
				t.Errorf("%d: %+v, want it since %s with its last step", i, got, tc.since)
			}
			time.Sleep(time.Second)
		}
	})
}

// What failed is on the board while it is tried again, and not longer.
func TestLastErrorStaysWhileItIsDoneAgain(t *testing.T) {
	t.Parallel()
	b := reconcile.NewBoard()
	for i, tc := range []struct {
		set  reconcile.Status
		want string
	}{
		{reconcile.Status{Phase: reconcile.Doing, For: "create"}, ""},
		{reconcile.Status{Phase: reconcile.Failing, Error: "exited with 1"}, "exited with 1"},
		{reconcile.Status{Phase: reconcile.Doing, For: "create"}, "exited with 1"},
		{reconcile.Status{Phase: reconcile.Failing, Error: "exited with 2"}, "exited with 2"},
		{reconcile.Status{Phase: reconcile.Doing, For: "create"}, "exited with 2"},
		{reconcile.Status{Phase: reconcile.Starting, For: "an answer"}, ""},
		{reconcile.Status{Phase: reconcile.Ready}, ""},
		{reconcile.Status{Phase: reconcile.Doing, For: "replace"}, ""},
	} {
		tc.set.Ref = "unit/u"
		b.Set(tc.set)
		if got := phase(b, "unit/u"); got.Phase != tc.set.Phase || got.Error != tc.want {
			t.Errorf("%d: %+v, want error %q", i, got, tc.want)
		}
	}
}

func TestAnnounceLeavesWhatIsThere(t *testing.T) {
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

// A reader that does not read holds up nobody, and still learns where each item has arrived.
func TestSlowSubscriber(t *testing.T) {
	t.Parallel()
	b := reconcile.NewBoard()
	slow := b.Subscribe()
	defer slow.End()
	ended := b.Subscribe()
	ended.End()
	for i := range 5000 {
		b.Set(reconcile.Status{Ref: fmt.Sprintf("unit/%d", i%10), Phase: reconcile.Starting, For: fmt.Sprint(i)})
	}
	b.Set(reconcile.Status{Ref: "unit/3", Phase: reconcile.Ready})
	<-slow.C
	got := slow.Take()
	if len(got) != 10 || got[0].Ref != "unit/0" || got[0].For != "4990" || got[3].Phase != reconcile.Ready {
		t.Errorf("it took %v", got)
	}
	if len(slow.Take()) != 0 {
		t.Error("the same changes were taken twice")
	}
	select {
	case <-slow.C:
		t.Error("woken for nothing")
	case <-ended.C:
		t.Error("an ended subscription was told")
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
				b.Set(reconcile.Status{Ref: fmt.Sprint(i), Phase: reconcile.Starting, For: fmt.Sprint(n)})
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
				t.Errorf("%s after it was ready", s.Phase)
			}
			seen[s.Ref] = s.Phase
			if s.Phase == reconcile.Ready {
				ready++
			}
		}
	}
	work.Wait()
}
