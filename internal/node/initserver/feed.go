// SPDX-License-Identifier: Apache-2.0

package initserver

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/broadcast"
)

// Event reports progress of a request.
type Event struct {
	Time      time.Time // zero: now
	Phase     string    // new phase of the request; empty in events about an item or a text
	Item      string    // an item of the plan
	ItemPhase string    // its phase
	Text      string    // a log line, or what the item waits for

	outcome *outcome // set in the last event only
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

// feed stores the events of a request for all its readers. When there are too many, it drops old events but never the first, by which
// a reader that reconnects recognizes the feed. Times are strictly increasing, so they identify events.
type feed struct {
	changed broadcast.Signal

	mu      sync.Mutex // guards the fields below
	events  []Event
	dropped int // number of dropped events
	over    bool
	phase   string
	last    time.Time
}

const (
	maxEvents = 2048
	maxText   = 2048 // bytes of each text
)

func newFeed() *feed { return &feed{phase: phaseClaimed} }

// add appends an event, unless the feed has ended.
func (f *feed) add(e Event) { f.append(e, false) }

// end appends the last event.
func (f *feed) end(e Event) { f.append(e, true) }

func (f *feed) append(e Event, last bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return
	}
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	if e.Time = e.Time.Round(0); !e.Time.After(f.last) {
		e.Time = f.last.Add(1)
	}
	f.last = e.Time
	e.Text, e.Item, e.ItemPhase = truncate(e.Text), truncate(e.Item), truncate(e.ItemPhase)
	if e.Phase != "" {
		f.phase = e.Phase
	}
	if len(f.events) == maxEvents { // drop half of them: dropping one at a time would copy all others at each event
		n := maxEvents / 2
		f.events = append(f.events[:1:1], f.events[1+n:]...)
		f.dropped += n
	}
	f.events = append(f.events, e)
	f.over = last
	f.changed.Notify()
}

// after returns the events from number n on, the number for the next call, whether the feed has ended, and a channel that is closed
// at the next event.
func (f *feed) after(n int) (events []Event, next int, over bool, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	next = f.dropped + len(f.events)
	if n == 0 && len(f.events) > 0 {
		events, n = append(events, f.events[0]), 1
	}
	if missed := f.dropped + 1 - n; missed > 0 && len(f.events) > 0 {
		n += missed
		events = append(events, Event{Time: f.events[1].Time.Add(-1), Text: fmt.Sprintf("(%d earlier events were dropped)", missed)})
	}
	if n < next {
		events = append(events, f.events[n-f.dropped:]...)
	}
	return events, next, f.over, f.changed.Wait()
}

// current returns the phase of the request.
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

// truncate returns s as valid UTF-8 of limited length.
func truncate(s string) string {
	if len(s) > maxText {
		s = s[:maxText] + "…"
	}
	return strings.ToValidUTF8(s, "")
}
