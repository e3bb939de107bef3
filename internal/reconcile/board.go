// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/trace"
)

// Phase is the phase of an item.
//
//	waiting ──needs ready──► doing ──done──► starting ──observed ready──► ready
//	                           ▲  │error        │process gone
//	                           └──┴── failing ◄─┘   (retried with backoff, without limit)
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
	wait.For            // what it waits for; Since is when the phase or the reason last changed
	Error    string     `json:"error,omitempty"` // last error; kept while a failed step is retried
	Step     *plan.Step `json:"step,omitempty"`  // the current or last step
	Needs    []string   `json:"-"`               // set in the first report only, for the trace
}

// Board holds the status of all items and notifies subscribers of each change. It is safe for concurrent
// use.
type Board struct {
	mu    sync.Mutex // guards the fields below
	order []string   // refs in the order of their first report
	items map[string]Status
	spans map[string]trace.Span
	subs  map[*Subscription]struct{}
	steps int

	lost map[string]bool   // items that were ready and are now down
	down map[string]Status // items marked down before they were ready
}

// NewBoard returns an empty board.
func NewBoard() *Board {
	return &Board{items: map[string]Status{}, spans: map[string]trace.Span{}, subs: map[*Subscription]struct{}{}, lost: map[string]bool{}, down: map[string]Status{}}
}

// Set records a status and notifies subscribers. Since is kept while phase and reason stay the same.
func (b *Board) Set(s Status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.setLocked(s)
}

// setLocked records a status and notifies subscribers of a change. An item that went down before the loop
// reports it ready is recorded as down instead.
func (b *Board) setLocked(s Status) {
	switch down, isDown := b.down[s.Ref]; {
	case s.Phase == Doing: // a new step supersedes what was known
		delete(b.down, s.Ref)
	case s.Phase == Ready && isDown:
		delete(b.down, s.Ref)
		b.lost[s.Ref] = true
		s = down
	}
	old := b.items[s.Ref]
	now := time.Now()
	span := b.spanLocked(s.Ref, s.Needs)
	if s.Step == nil {
		s.Step = old.Step
	}
	if s.Phase == Doing && s.Error == "" { // keep the last error while the step is retried
		s.Error = old.Error
	}
	if s.Phase == old.Phase && s.What == old.What && s.Error == old.Error {
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
		delete(b.lost, s.Ref)
	}
	b.items[s.Ref] = s
	b.notifyLocked(s)
}

// setWaiting reports what an item waits for, unless the item is ready: observing a ready item again does
// not make it unready.
func (b *Board) setWaiting(ref, what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.items[ref].Phase != Ready {
		b.setLocked(Status{Ref: ref, Phase: Waiting, For: wait.For{What: what}})
	}
}

// setRemoving reports an item that is about to be removed, and what its removal waits for.
func (b *Board) setRemoving(ref, what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.setLocked(Status{Ref: ref, Phase: Waiting, For: wait.For{What: what}, Step: &plan.Step{Verb: plan.Remove, Why: removalReason}})
}

// Drop removes an item from the board because it is gone from the machine or no longer tracked here.
// Subscribers receive a last status, ready; the item's span is kept.
func (b *Board) Drop(ref string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.items[ref]; known {
		b.setLocked(Status{Ref: ref, Phase: Ready})
		delete(b.items, ref)
	}
}

// Announce adds every entry of a plan to the board as waiting. Entries that are already on the board are
// left as they are.
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

// All returns every item's status in plan order, and the number of steps since the last Reset or
// ResetSteps.
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

// Reset removes the items, spans and step count of an earlier run.
func (b *Board) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.order, b.steps = nil, 0
	clear(b.items)
	clear(b.lost)
	clear(b.down)
	clear(b.spans)
}

// ResetSteps sets the step count to zero, without changing items or spans.
func (b *Board) ResetSteps() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.steps = 0
}

// Resend notifies subscribers of one item although it has not changed, so that they see what is reported
// along with it.
func (b *Board) Resend() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ref := range b.order {
		if s, ok := b.items[ref]; ok {
			b.notifyLocked(s)
			return
		}
	}
}

// span updates the trace of an item until the item is ready. Later observations are not part of its start.
func (b *Board) span(ref string, change func(*trace.Span)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.spanLocked(ref, nil); s.Ready.IsZero() {
		change(&s)
		b.spans[ref] = s
	}
}

// spanLocked returns the item's span, and starts it if there is none. needs is only used for a new span.
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

// CountStep counts a step and returns the new count. Callers other than the loop must call it before the
// item concerned becomes ready.
func (b *Board) CountStep() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.steps++
	return b.steps
}

// Subscription collects the changes of a board until its reader takes them. Only the newest status of each
// item is kept, so a slow reader does not block writers, uses bounded memory, and always sees the latest status.
type Subscription struct {
	C <-chan struct{} // receives a value when there are changes to take

	wake    chan struct{}
	board   *Board
	order   []string          // guarded by the board's mutex, like changed
	changed map[string]Status // by Ref
}

// Subscribe returns a new subscription. The caller must end it with End.
func (b *Board) Subscribe() *Subscription {
	wake := make(chan struct{}, 1)
	s := &Subscription{C: wake, wake: wake, board: b, changed: map[string]Status{}}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subs[s] = struct{}{}
	return s
}

// Take returns the changes since the last Take, ordered by each item's first change.
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

// End ends the subscription.
func (s *Subscription) End() {
	s.board.mu.Lock()
	defer s.board.mu.Unlock()
	delete(s.board.subs, s)
}

func (b *Board) notifyLocked(status Status) {
	for s := range b.subs {
		if _, pending := s.changed[status.Ref]; !pending {
			s.order = append(s.order, status.Ref)
		}
		s.changed[status.Ref] = status
		select {
		case s.wake <- struct{}{}:
		default: // the reader has not been woken yet
		}
	}
}

// Await blocks until enough holds for the phase of every item in refs, and calls waiting with the first
// item that is missing each time it is a different one. Items that are not on the board are skipped: a
// plan announces all its items before the loop starts. Await returns an error only if ctx ends.
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

// First returns the first of refs that is on the board, or else the last of them.
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

// IsReady reports whether an item in this phase can be relied on.
func IsReady(p Phase) bool { return p == Ready }

// IsStarted reports whether the loop has observed the item and done its step, so that the running process
// belongs to the current plan. It is enough for callers that wait for readiness themselves.
func IsStarted(p Phase) bool { return p == Starting || p == Ready }

// missing returns the first of refs whose phase is not enough, or "".
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

// MarkDown reports that an item is no longer ready, without a step of the loop: the process of a unit
// died. The caller must report its recovery with MarkUp. While the loop works on the item, the status is
// not changed, but the item stays down when the loop reports it ready.
func (b *Board) MarkDown(ref, reason, provider string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	down := Status{Ref: ref, Phase: Failing, Error: reason, For: wait.For{Who: provider}}
	if b.items[ref].Phase == Ready || b.lost[ref] {
		b.lost[ref] = true
		b.setLocked(down)
		return
	}
	b.down[ref] = down
}

// MarkUp reports that an item that was down has recovered.
func (b *Board) MarkUp(ref string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.down, ref)
	if b.lost[ref] {
		b.setLocked(Status{Ref: ref, Phase: Ready})
	}
}
