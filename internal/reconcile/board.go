// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/trace"
)

// Phase is where an item stands.
//
//	waiting ──needs ready──► doing ──done──► starting ──observed ready──► ready
//	                           ▲  │error        │gone
//	                           └──┴── failing ◄─┘   (tried again, later each time, without end)
type Phase string

// The phases.
const (
	Waiting  Phase = "waiting"
	Doing    Phase = "doing"
	Starting Phase = "starting"
	Failing  Phase = "failing"
	Ready    Phase = "ready"
)

// Status is one item's phase and the reason for it.
type Status struct {
	Ref      string     `json:"ref"`
	Phase    Phase      `json:"phase"`
	Since    time.Time  `json:"since"`
	For      string     `json:"for,omitempty"`      // what it waits for
	Provider string     `json:"provider,omitempty"` // who should provide it
	Error    string     `json:"error,omitempty"`    // last error: of what fails, or is done again because it has failed
	Step     *plan.Step `json:"step,omitempty"`     // the step under way or done last
	Needs    []string   `json:"-"`                  // first report only: what it comes after, for the trace
}

// Board holds the status of all items and tells subscribers of each change. Safe for concurrent use.
type Board struct {
	mu    sync.Mutex // guards the fields below
	order []string   // of spans, and so of items
	items map[string]Status
	spans map[string]trace.Span
	subs  map[*Subscription]struct{}
	steps int

	fallen map[string]bool   // items that went down when they were ready, and have not come back
	down   map[string]Status // items that went Down before they were ready, and have not come back
}

// NewBoard returns an empty board.
func NewBoard() *Board {
	return &Board{items: map[string]Status{}, spans: map[string]trace.Span{}, subs: map[*Subscription]struct{}{}, fallen: map[string]bool{}, down: map[string]Status{}}
}

// Set records a status and passes it on. Since is kept while phase and reason stay the same.
func (b *Board) Set(s Status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.setLocked(s)
}

func (b *Board) setLocked(s Status) {
	switch down, isDown := b.down[s.Ref]; {
	case s.Phase == Doing: // a step begins anew
		delete(b.down, s.Ref)
	case s.Phase == Ready && isDown:
		delete(b.down, s.Ref)
		b.fallen[s.Ref] = true
		s = down
	}
	old := b.items[s.Ref]
	now := time.Now()
	span := b.spanLocked(s.Ref, s.Needs)
	if s.Step == nil {
		s.Step = old.Step
	}
	if s.Phase == Doing && s.Error == "" { // what failed is tried again, and may fail for long each time
		s.Error = old.Error
	}
	if s.Phase == old.Phase && s.For == old.For && s.Error == old.Error {
		return
	}
	if s.Since.IsZero() {
		s.Since = now
	}
	if s.Phase == Ready && span.Ready.IsZero() {
		span.Ready = now
		b.spans[s.Ref] = span
	}
	if s.Phase == Ready {
		delete(b.fallen, s.Ref)
	}
	b.items[s.Ref] = s
	b.tellLocked(s)
}

// waits says what an item waits for, unless it is ready: to look again at what is ready is no reason to call it unready.
func (b *Board) waits(ref, what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.items[ref].Phase != Ready {
		b.setLocked(Status{Ref: ref, Phase: Waiting, For: what})
	}
}

// leaves puts on the board what is to go from the machine: until it has, the run is not done.
func (b *Board) leaves(ref, what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.setLocked(Status{Ref: ref, Phase: Waiting, For: what, Step: &plan.Step{Verb: plan.Remove, Why: noLonger}})
}

// drop takes an item off the board because it is gone from the machine, as it should be. Subscribers hear that it is done,
// its span stays.
func (b *Board) drop(ref string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.items[ref]; known {
		b.setLocked(Status{Ref: ref, Phase: Ready})
		delete(b.items, ref)
	}
}

// Announce puts every entry of a plan on the board as waiting; entries that are there already stay as they are.
func (b *Board) Announce(p plan.Plan) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range p.Entries {
		if _, known := b.items[e.Ref.String()]; known {
			continue
		}
		var needs []string
		for _, n := range e.Needs {
			needs = append(needs, n.String())
		}
		b.setLocked(Status{Ref: e.Ref.String(), Phase: Waiting, Needs: needs})
	}
}

// Drop takes an item off the board that nobody here answers for any longer.
func (b *Board) Drop(ref string) { b.drop(ref) }

// All returns every item's status in plan order, and how many steps were carried out since the last Reset.
func (b *Board) All() ([]Status, int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]Status, 0, len(b.order))
	for _, ref := range b.order {
		if s, ok := b.items[ref]; ok {
			out = append(out, s)
		}
	}
	return out, b.steps
}

// Spans returns the trace so far, in plan order.
func (b *Board) Spans() []trace.Span {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]trace.Span, 0, len(b.spans))
	for _, ref := range b.order {
		out = append(out, b.spans[ref])
	}
	return out
}

// Reset forgets the items, spans and count of an earlier run.
func (b *Board) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.order, b.steps = nil, 0
	clear(b.items)
	clear(b.fallen)
	clear(b.down)
	clear(b.spans)
}

// Recount begins to count steps anew, because somebody new wants to know what it takes from here on.
func (b *Board) Recount() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.steps = 0
}

// Repeat tells subscribers of one item as it is, for what they hear with it.
func (b *Board) Repeat() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ref := range b.order {
		if s, ok := b.items[ref]; ok {
			b.tellLocked(s)
			return
		}
	}
}

// span changes what the trace says of an item until it is ready; looking at it again later is not part of its way up.
func (b *Board) span(ref string, change func(*trace.Span)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.spanLocked(ref, nil); s.Ready.IsZero() {
		change(&s)
		b.spans[ref] = s
	}
}

func (b *Board) spanLocked(ref string, needs []string) trace.Span {
	s, known := b.spans[ref]
	if !known {
		now := time.Now()
		s = trace.Span{Ref: ref, Needs: needs, Begun: now, Released: now, Done: now}
		b.spans[ref] = s
		b.order = append(b.order, ref)
	}
	return s
}

func (b *Board) countStep() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.steps++
	return b.steps
}

// Subscription collects what changes on a board until its reader takes it. Of each item only the newest status is kept: a slow
// reader holds up nobody, costs no more than the board does, and never misses where an item has arrived.
type Subscription struct {
	C <-chan struct{} // has a value when there is something to take

	wake    chan struct{}
	board   *Board
	order   []string          // guarded by the board's mutex, as is the next
	changed map[string]Status // by Ref
}

// Subscribe begins to collect changes.
func (b *Board) Subscribe() *Subscription {
	wake := make(chan struct{}, 1)
	s := &Subscription{C: wake, wake: wake, board: b, changed: map[string]Status{}}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subs[s] = struct{}{}
	return s
}

// Take returns the changes since the last Take, the item that changed first first.
func (s *Subscription) Take() []Status {
	s.board.mu.Lock()
	defer s.board.mu.Unlock()
	out := make([]Status, 0, len(s.order))
	for _, ref := range s.order {
		out = append(out, s.changed[ref])
	}
	s.order = nil
	clear(s.changed)
	return out
}

// End stops collecting.
func (s *Subscription) End() {
	s.board.mu.Lock()
	defer s.board.mu.Unlock()
	delete(s.board.subs, s)
}

func (b *Board) tellLocked(status Status) {
	for s := range b.subs {
		if _, pending := s.changed[status.Ref]; !pending {
			s.order = append(s.order, status.Ref)
		}
		s.changed[status.Ref] = status
		select {
		case s.wake <- struct{}{}:
		default: // it has not read the last one yet
		}
	}
}

// Await blocks until the items are good enough, and calls waiting with the first that is not each time it is another. What is
// not on the board is not waited for: a plan's items are all announced before anybody works on them.
func (b *Board) Await(ctx context.Context, enough func(Phase) bool, refs []string, waiting func(ref string)) error {
	sub := b.Subscribe()
	defer sub.End()
	for last := ""; ; {
		missing := b.missing(enough, refs)
		if missing == "" {
			return nil
		}
		if missing != last {
			last = missing
			waiting(missing)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-sub.C:
			sub.Take()
		}
	}
}

// First is the first of the given items that is on the board, or else the last of them.
func (b *Board) First(refs ...string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ref := range refs {
		if _, known := b.items[ref]; known {
			return ref
		}
	}
	return refs[len(refs)-1]
}

// IsReady is enough for what builds on an item.
func IsReady(p Phase) bool { return p == Ready }

// IsBegun is enough for what can wait for the rest by itself: the loop has looked at the item and has done its step, so that
// what runs now is this plan's and no earlier one's.
func IsBegun(p Phase) bool { return p == Starting || p == Ready }

func (b *Board) missing(enough func(Phase) bool, refs []string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ref := range refs {
		if s, known := b.items[ref]; known && !enough(s.Phase) {
			return ref
		}
	}
	return ""
}

// Changed counts what somebody other than the loop has changed as a step, so that whoever asks what a run has done is told of
// it. It must be called before the item concerned becomes ready.
func (b *Board) Changed() int { return b.countStep() }

// Down says that an item is ready no longer, by itself: a unit, whose Rose is sure to follow when it is up again. While the loop is
// at work on the item, the loop's own word counts; but an item that is down does not become ready, although the loop may just
// have seen it ready.
func (b *Board) Down(ref, reason, provider string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	down := Status{Ref: ref, Phase: Failing, Error: reason, Provider: provider}
	if b.items[ref].Phase == Ready || b.fallen[ref] {
		b.fallen[ref] = true
		b.setLocked(down)
		return
	}
	b.down[ref] = down
}

// Rose says that an item which was down has come back.
func (b *Board) Rose(ref string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.down, ref)
	if b.fallen[ref] {
		b.setLocked(Status{Ref: ref, Phase: Ready})
	}
}
