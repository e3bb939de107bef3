// SPDX-License-Identifier: Apache-2.0

package initserver

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/initclient"
)

// TestDisconnects: a client whose connection breaks at any event, or at each, sees each event once and gets the same result.
func TestDisconnects(t *testing.T) {
	t.Parallel()
	want := []string{"claimed", "installed", "unit/u0", "unit/u1", "unit/u2", "committed"}
	for at := -1; at < len(want); at++ {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			a, c := r.begin(), r.client()
			if _, err := c.Init(t.Context(), idA, ticket("n1")); err != nil {
				t.Fatal(err)
			}
			var seen []string
			result, err := c.Watch(t.Context(), idA, func(e initclient.Event) {
				if at < 0 || len(seen) == at {
					a.cut(false)
				}
				seen = append(seen, e.Phase+e.Item)
			})
			if diff := cmp.Diff(wantResult("n1"), result); err != nil || diff != "" {
				t.Error(err, diff)
			}
			if diff := cmp.Diff(want, seen); diff != "" {
				t.Error(diff)
			}
			if a.machine.count("install") != 1 || a.machine.count("wipe") != 0 {
				t.Errorf("got calls %v, want one install and no wipe", a.machine.calls)
			}
		})
	}
}

// TestClientLeaves: a request is carried out even if its client disconnects at once (TC-1), and other clients can fetch its result.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	hold := make(chan struct{})
	r.tune = func(_ *Config, m *testMachine) { m.hold = hold }
	r.begin()
	first := r.client()
	if _, err := first.Init(t.Context(), idA, ticket("n1")); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	close(hold)
	var all sync.WaitGroup
	for range 8 {
		c := r.client()
		all.Go(func() {
			result, err := c.Watch(t.Context(), idA, nil)
			if diff := cmp.Diff(wantResult("n1"), result); err != nil || diff != "" {
				t.Error(err, diff)
			}
		})
	}
	all.Wait()
}

// TestFeed: the feed has a limited size, keeps its first event, reports what it has dropped, and its times increase.
func TestFeed(t *testing.T) {
	t.Parallel()
	f := newFeed()
	f.add(Event{Phase: phaseClaimed})
	const total = 3 * maxEvents
	back := time.Now()
	for i := range total {
		f.add(Event{Time: back.Add(-time.Duration(i) * time.Hour), Text: fmt.Sprint(i)})
	}
	f.end(Event{Phase: phaseFailed, outcome: &outcome{Why: "x"}})
	f.add(Event{Text: "too late"})
	events, next, over, _ := f.after(0)
	if !over || len(events) > maxEvents+1 || next != total+2 {
		t.Fatalf("%d events, next %d, over %v", len(events), next, over)
	}
	if events[0].Phase != phaseClaimed || !strings.Contains(events[1].Text, "earlier events were dropped") || events[len(events)-1].outcome == nil {
		t.Errorf("%+v … %+v", events[:3], events[len(events)-1])
	}
	missed := 0
	if _, err := fmt.Sscanf(events[1].Text, "(%d earlier", &missed); err != nil || missed+len(events)-1 != total+2 {
		t.Errorf("got %d missed and %d stored events, want %d in total", missed, len(events)-1, total+2)
	}
	for i, e := range events[1:] {
		if !e.Time.After(events[i].Time) {
			t.Fatalf("event %d: %v after %v", i+1, e.Time, events[i].Time)
		}
	}
	if again, _, _, _ := f.after(next); len(again) != 0 {
		t.Errorf("got more events: %+v", again)
	}
	slow, _, _, _ := f.after(5)
	if !strings.Contains(slow[0].Text, "earlier events") || len(slow) != len(events)-1 {
		t.Errorf("slow reader: got %d events from %+v", len(slow), slow[0])
	}
}

func TestFeedBoundsTexts(t *testing.T) {
	t.Parallel()
	f := newFeed()
	f.add(Event{Text: strings.Repeat("ä", maxText), Item: "a\xffb"})
	events, _, _, _ := f.after(0)
	if e := events[0]; len(e.Text) > maxText+8 || !strings.HasSuffix(e.Text, "ä…") || e.Item != "ab" {
		t.Errorf("%d bytes, %q", len(e.Text), e.Item)
	}
}

// TestFeedLive: every reader gets every event in order, even while events are added.
func TestFeedLive(t *testing.T) {
	t.Parallel()
	f := newFeed()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			got := 0
			for n, over := 0, false; !over; {
				var events []Event
				var changed <-chan struct{}
				if events, n, over, changed = f.after(n); len(events) == 0 && !over {
					<-changed
				}
				for _, e := range events {
					if e.outcome == nil && e.Text != fmt.Sprint(got) {
						t.Errorf("%q, want %d", e.Text, got)
					}
					got++
				}
			}
			if got != 501 {
				t.Errorf("%d events", got)
			}
		})
	}
	for i := range 500 {
		f.add(Event{Text: fmt.Sprint(i)})
	}
	f.end(Event{outcome: &outcome{}})
	all.Wait()
}
