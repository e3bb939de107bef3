// SPDX-License-Identifier: Apache-2.0

package units

import (
	"strconv"
	"time"
)

// EventKind says what has happened to a unit.
type EventKind string

// The kinds of event.
const (
	Started EventKind = "started"
	Ready   EventKind = "ready"
	Unready EventKind = "unready" // it lives and fails its health probe
	Exited  EventKind = "exited"  // by itself; it is started again
	Done    EventKind = "done"    // a oneshot has ended; whoever ran it says what that means
	Stopped EventKind = "stopped" // because it was told to
)

// Event is one change of a unit's state.
type Event struct {
	At     time.Time
	Unit   string
	Kind   EventKind
	PID    int
	Detail string
}

// Status is what is known of a unit.
type Status struct {
	Name      string    `json:"name"`
	PID       int       `json:"pid,omitempty"` // 0 when it does not run
	Since     time.Time `json:"since"`         // of the latest start
	Ready     bool      `json:"ready"`
	Waiting   string    `json:"waiting,omitempty"` // why it is not ready
	Restarts  int       `json:"restarts"`
	LastExit  *Exit     `json:"lastExit,omitempty"`
	RestartAt time.Time `json:"restartAt,omitzero"` // when it is started next; zero unless it is waiting for that
	Oneshot   bool      `json:"oneshot,omitempty"`
}

// Exit tells how a process ended.
type Exit struct {
	At     time.Time `json:"at"`
	Code   int       `json:"code"`             // -1 when a signal ended it or nobody knows
	Signal string    `json:"signal,omitempty"` // "killed", "terminated", …
	Lost   bool      `json:"lost,omitempty"`   // it was not our child, so nobody knows the code
	Cause  string    `json:"cause,omitempty"`  // why its supervisor ended it, although nobody had told it to
}

func (e Exit) String() string {
	switch {
	case e.Cause != "":
		return e.Cause
	case e.Lost:
		return "ended while it was not the agent's child"
	case e.Signal != "":
		return "ended by signal: " + e.Signal
	}
	return "exited with " + strconv.Itoa(e.Code)
}
