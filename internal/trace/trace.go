// SPDX-License-Identifier: Apache-2.0

// Package trace records the timing of each item of a plan, and computes the chain of items that determined
// the total time. It never waits.
//
// Read [Span] and [CriticalPath].
package trace

import (
	"cmp"
	"slices"
	"time"
)

// Span is the timing of one item.
type Span struct {
	Ref      string    `json:"ref"`
	Needs    []string  `json:"needs,omitempty"`
	Begun    time.Time `json:"begun"`    // starts to wait for its needs
	Released time.Time `json:"released"` // the last need is ready
	Done     time.Time `json:"done"`     // the step is done; equals Released if there was nothing to do
	Ready    time.Time `json:"ready"`    // observed ready; zero if not ready yet
	Step     string    `json:"step,omitempty"`
	Why      string    `json:"why,omitempty"`
	Attempts int       `json:"attempts,omitempty"` // failed attempts
}

// Segment is one item on the critical path.
type Segment struct {
	Ref   string        `json:"ref"`
	Start time.Duration `json:"start"` // since the start of the trace
	Doing time.Duration `json:"doing"` // from Released to Done
	Ready time.Duration `json:"ready"` // from Done to Ready; 0 if not ready yet
}

// CriticalPath walks back from target, or by default from the item that became ready last, to the need that
// became ready last, and so on. The segments are in chronological order.
func CriticalPath(spans []Span, target string) []Segment {
	if len(spans) == 0 {
		return nil
	}
	byRef := map[string]Span{}
	zero := spans[0].Begun
	for _, s := range spans {
		byRef[s.Ref] = s
		if s.Begun.Before(zero) {
			zero = s.Begun
		}
	}
	at := slices.MaxFunc(spans, later)
	if s, ok := byRef[target]; ok {
		at = s
	}
	var path []Segment
	seen := map[string]bool{} // a trace from outside may contain cycles
	for {
		seen[at.Ref] = true
		var needs []Span
		for _, n := range at.Needs {
			if s, ok := byRef[n]; ok && !seen[n] {
				needs = append(needs, s)
			}
		}
		if len(needs) == 0 {
			path = append(path, segment(at, zero))
			slices.Reverse(path)
			return path
		}
		last := slices.MaxFunc(needs, later)
		path = append(path, segment(at.from(last.Ready), zero))
		at = last
	}
}

// from moves the start of a span that did not wait for a need to the time when the need was ready: an item
// that watches others only starts its real work then.
func (s Span) from(needed time.Time) Span {
	if s.Released.Before(needed) && needed.Before(s.Ready) {
		s.Released = needed
		if s.Done.Before(needed) {
			s.Done = needed
		}
	}
	return s
}

// segment is the part of the path that a span accounts for.
func segment(s Span, zero time.Time) Segment {
	out := Segment{Ref: s.Ref, Start: s.Released.Sub(zero), Doing: s.Done.Sub(s.Released)}
	if !s.Ready.IsZero() { // otherwise the duration is unknown
		out.Ready = s.Ready.Sub(s.Done)
	}
	return out
}

// later orders spans by the time they became ready, and by name if equal.
func later(a, b Span) int { return cmp.Or(a.Ready.Compare(b.Ready), cmp.Compare(b.Ref, a.Ref)) }
