// SPDX-License-Identifier: Apache-2.0

package initserver

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// Event is one line of how a request gets on.
type Event struct {
	Time      time.Time // zero: now
	Phase     string    // where the request has come; empty for what is about an item or a text
	Item      string    // an item of the plan …
	ItemPhase string    // … and where it stands
	Text      string    // a line of log, or the reason of waiting

	outcome *outcome // the last event
}

// The phases of a request.
const (
	phaseClaimed   = "claimed"
	phaseInstalled = "installed"
	phaseCommitted = "committed"
	phaseFailed    = "failed"
)

type outcome struct {
	Result Result
	Why    string
}

// feed keeps a request's events for whoever comes, however late. It forgets old ones when there are too many, but never the
// first, by which a watcher that comes back knows that it is the same feed. Times are strictly increasing, so that they tell
// events apart.
type feed struct {
	mu      sync.Mutex // guards the fields below
	events  []Event
	dropped int // events after the first that are gone
	over    bool
	phase   string
	last    time.Time
	changed chan struct{} // closed and replaced with each event
}

const (
	maxEvents = 2048
	maxText   = 2048 // bytes of each text
)

func newFeed() *feed { return &feed{changed: make(chan struct{}), phase: phaseClaimed} }

// add takes events until the feed is over.
func (f *feed) add(e Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return
	}
	f.addLocked(e)
}

// end adds the last event.
func (f *feed) end(e Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return
	}
	f.addLocked(e)
	f.over = true
}

func (f *feed) addLocked(e Event) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	if e.Time = e.Time.Round(0); !e.Time.After(f.last) {
		e.Time = f.last.Add(1)
	}
	f.last = e.Time
	e.Text, e.Item, e.ItemPhase = short(e.Text), short(e.Item), short(e.ItemPhase)
	if e.Phase != "" {
		f.phase = e.Phase
	}
	if len(f.events) == maxEvents { // half of them at once: dropping one by one would move all the others each time
		n := maxEvents / 2
		f.events = append(f.events[:1:1], f.events[1+n:]...)
		f.dropped += n
	}
	f.events = append(f.events, e)
	close(f.changed)
	f.changed = make(chan struct{})
}

// after gives the events from the n-th on, the number to ask with next, and, if there are none yet, what to wait for.
func (f *feed) after(n int) (events []Event, next int, over bool, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	next = f.dropped + len(f.events)
	if n == 0 && len(f.events) > 0 {
		events, n = append(events, f.events[0]), 1
	}
	if missed := f.dropped + 1 - n; missed > 0 && len(f.events) > 0 {
		n += missed
		events = append(events, Event{Time: f.events[1].Time.Add(-1), Text: fmt.Sprintf("(%d earlier events are not kept)", missed)})
	}
	if n < next {
		events = append(events, f.events[n-f.dropped:]...)
	}
	return events, next, f.over, f.changed
}

func (f *feed) current() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.phase
}

func (f *feed) ended() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.over
}

// short is the text as it may travel: valid UTF-8, of bounded length.
func short(s string) string {
	if len(s) > maxText {
		s = s[:maxText] + "…"
	}
	return strings.ToValidUTF8(s, "")
}
