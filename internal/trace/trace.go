// SPDX-License-Identifier: Apache-2.0

// Package trace keeps what happened to each item of a plan and when, and says which chain of waits decided the end. It
// records and computes; it never waits itself.
//
// Read [Span] and [CriticalPath].
package trace

import (
	"cmp"
	"slices"
	"time"
)

// Span is the life of one item until it was ready.
type Span struct {
	Ref      string    `json:"ref"`
	Needs    []string  `json:"needs,omitempty"`
	Begun    time.Time `json:"begun"`    // taken up; from here it waits for its needs
	Released time.Time `json:"released"` // the last need was ready
	Done     time.Time `json:"done"`     // the step was carried out; equals Released when there was nothing to do
	Ready    time.Time `json:"ready"`    // observed ready; zero while it is not
	Step     string    `json:"step,omitempty"`
	Why      string    `json:"why,omitempty"`
	Attempts int       `json:"attempts,omitempty"` // failed attempts
}

// Segment is one link of the critical path.
type Segment struct {
	Ref   string        `json:"ref"`
	Start time.Duration `json:"start"` // since the beginning of the trace
	Doing time.Duration `json:"doing"` // from released to done
	Ready time.Duration `json:"ready"` // from done to ready; 0 while it is not
}

// CriticalPath walks back from the item that was ready last (or from target, if it is not empty), each time to the need that
// was ready last. The segments come in order of time.
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
	seen := map[string]bool{} // a trace that was read from somewhere may go in circles
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

// from is the span as it counts on a path: what watches from the beginning for others to be ready begins in earnest when they
// are.
func (s Span) from(needed time.Time) Span {
	if s.Released.Before(needed) && needed.Before(s.Ready) {
		s.Released = needed
		if s.Done.Before(needed) {
			s.Done = needed
		}
	}
	return s
}

func segment(s Span, zero time.Time) Segment {
	out := Segment{Ref: s.Ref, Start: s.Released.Sub(zero), Doing: s.Done.Sub(s.Released)}
	if !s.Ready.IsZero() { // it has taken nobody knows how long yet
		out.Ready = s.Ready.Sub(s.Done)
	}
	return out
}

func later(a, b Span) int { return cmp.Or(a.Ready.Compare(b.Ready), cmp.Compare(b.Ref, a.Ref)) }
