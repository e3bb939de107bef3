// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
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
	Error    string     `json:"error,omitempty"`    // last error
	Step     *plan.Step `json:"step,omitempty"`     // the step under way or done last
	Needs    []string   `json:"-"`                  // first report only: what it comes after, for the trace
}

// Board holds the status of all items and tells subscribers of each change. Safe for concurrent use.
type Board struct {
	mu    sync.Mutex // guards the fields below
	order []string
	items map[string]Status
	spans map[string]trace.Span
	subs  map[chan Status]struct{}
	steps int
}

// NewBoard returns an empty board.
func NewBoard() *Board {
	return &Board{items: map[string]Status{}, spans: map[string]trace.Span{}, subs: map[chan Status]struct{}{}}
}

// Set records a status and passes it on. Since is kept while phase and reason stay the same.
func (b *Board) Set(s Status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old, known := b.items[s.Ref]
	now := time.Now()
	if !known {
		b.order = append(b.order, s.Ref)
		b.spans[s.Ref] = trace.Span{Ref: s.Ref, Needs: s.Needs, Begun: now, Released: now, Done: now}
	}
	if s.Step == nil {
		s.Step = old.Step
	}
	if old.Phase == Ready && s.Phase == Waiting {
		return // looking again does not make an item unready; only what is found can
	}
	if s.Phase == old.Phase && s.For == old.For && s.Error == old.Error {
		return
	}
	if s.Since.IsZero() {
		s.Since = now
	}
	if span := b.spans[s.Ref]; s.Phase == Ready && span.Ready.IsZero() {
		span.Ready = now
		b.spans[s.Ref] = span
	}
	b.items[s.Ref] = s
	for sub := range b.subs {
		select {
		case sub <- s:
		default: // a subscriber that does not read loses lines, never holds up the work; it can ask for All
		}
	}
}

// Announce puts every entry of a plan on the board as waiting; entries that are there already stay as they are.
func (b *Board) Announce(p plan.Plan) {
	for _, e := range p.Entries {
		var needs []string
		for _, n := range e.Needs {
			needs = append(needs, n.String())
		}
		b.Set(Status{Ref: e.Ref.String(), Phase: Waiting, Needs: needs})
	}
}

// All returns every item's status in plan order, and how many steps were carried out since the last Reset.
func (b *Board) All() ([]Status, int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]Status, 0, len(b.order))
	for _, ref := range b.order {
		out = append(out, b.items[ref])
	}
	return out, b.steps
}

// Spans returns the trace so far, in plan order.
func (b *Board) Spans() []trace.Span {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]trace.Span, 0, len(b.spans))
	for _, ref := range b.order {
		if s, ok := b.spans[ref]; ok {
			out = append(out, s)
		}
	}
	return out
}

// Subscribe returns a channel of changes, and a function that ends the subscription.
func (b *Board) Subscribe() (<-chan Status, func()) {
	ch := make(chan Status, 512)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subs[ch] = struct{}{}
	return ch, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.subs, ch)
	}
}

// Reset forgets the items, spans and count of an earlier run.
func (b *Board) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.order, b.steps = nil, 0
	clear(b.items)
	clear(b.spans)
}

func (b *Board) span(ref string, change func(*trace.Span)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.spans[ref]
	s.Ref = ref
	change(&s)
	b.spans[ref] = s
}

func (b *Board) countStep() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.steps++
	return b.steps
}
