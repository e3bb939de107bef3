// SPDX-License-Identifier: Apache-2.0

// Package report has what the operator's commands tell their caller: a stream of events while they work, and an error with a
// kind, from which the caller derives an exit code. It prints nothing and decides nothing.
//
// Read [Event] and [Error] first.
package report

import (
	"fmt"
	"time"

	"github.com/slipway-project/slipway/internal/reconcile"
)

// Event tells how the work is going. Events of one Item arrive in order.
type Event struct {
	Stage   Stage         `json:"stage"`
	Machine string        `json:"machine,omitempty"`
	Item    string        `json:"item,omitempty"`
	Phase   string        `json:"phase,omitempty"`
	Text    string        `json:"text,omitempty"`
	Elapsed time.Duration `json:"elapsed"` // since the command started
	Done    int           `json:"done,omitempty"`
	Total   int           `json:"total,omitempty"`
}

// Func receives events. It is called from several goroutines and must not block for long. A nil Func discards them.
type Func func(Event)

// Since returns a Func that sets Elapsed to the time since start.
func (f Func) Since(start time.Time) Func {
	return func(e Event) {
		if f != nil {
			e.Elapsed = time.Since(start)
			f(e)
		}
	}
}

// Stage is the part of the work that an event belongs to.
type Stage string

// The stages, in the order in which a command passes through them.
const (
	StageSpec      Stage = "spec"
	StagePreflight Stage = "preflight"
	StageBundle    Stage = "bundle"
	StageMachine   Stage = "machine"
	StagePlan      Stage = "plan"
	StageConverge  Stage = "converge"
	StageDone      Stage = "done"
)

// AlreadyRunning is the text of a machine's event if nothing had to be done.
const AlreadyRunning = "already running"

// Item is the event for a plan item's new status on a machine.
func Item(machine string, s reconcile.Status) Event {
	text := s.What
	switch {
	case s.Phase == reconcile.Failing:
		text = s.Error
	case s.Phase == reconcile.Doing && s.Error != "":
		text += " again; last error: " + s.Error
	}
	return Event{Stage: StageConverge, Machine: machine, Item: s.Ref, Phase: string(s.Phase), Text: text}
}

// Error is a failure with a kind. Commands return it wrapped or as is; callers find it with errors.As.
type Error struct {
	Kind ErrorKind
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// ErrorKind says what kind of failure an [Error] is.
type ErrorKind int

// The kinds. An error that is not an [Error] is a plain failure.
const (
	InvalidSpec ErrorKind = iota + 1
	Preflight
	TimedOut
)

// Count counts things for people: "1 machine", "3 machines". The noun's plural must end in s.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
