// SPDX-License-Identifier: Apache-2.0

// Package units is what every supervisor of a plan's units does alike, whoever runs the processes: what makes a running process
// another than the wanted one, how long it rests between two deaths, whether it is still
// well, and where its words go. It runs nothing and knows no supervisor.
//
// Read [Begun] and [Seen] first, then [Health].
//
//	inputs, err := seen.Fingerprints(spec, files.Fingerprint)
//	why := units.Begun{Unit: was, Inputs: wasInputs}.Differs(spec, inputs) // "its arguments changed"
package units

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
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

// Set is the units that a host knows, by name. The zero value is ready.
type Set[U comparable] struct {
	mu    sync.Mutex // guards the field below
	units map[string]U
}

// Get is the zero U for a unit that nobody has asked for yet.
func (s *Set[U]) Get(name string) U {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.units[name]
}

// GetOrNew makes a unit that is not known; made must not ask the set.
func (s *Set[U]) GetOrNew(name string, made func() U) U {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, ok := s.units[name]
	if !ok {
		u = made()
		s.putLocked(name, u)
	}
	return u
}

// Put adds a unit.
func (s *Set[U]) Put(name string, u U) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.putLocked(name, u)
}

func (s *Set[U]) putLocked(name string, u U) {
	if s.units == nil {
		s.units = map[string]U{}
	}
	s.units[name] = u
}

// Forget takes a unit out, unless another one has its name by now.
func (s *Set[U]) Forget(name string, u U) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.units[name] == u {
		delete(s.units, name)
	}
}

// Names lists the units, sorted.
func (s *Set[U]) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.units))
}

// All lists the units by name.
func (s *Set[U]) All() []U {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []U
	for _, name := range slices.Sorted(maps.Keys(s.units)) {
		all = append(all, s.units[name])
	}
	return all
}

// StopAll stops the named units one after the other, then all others. It goes on when one does not stop. A name of nobody is no error.
func (s *Set[U]) StopAll(ctx context.Context, order []string, stop func(u U, ctx context.Context) error) error {
	for _, name := range s.Names() {
		if !slices.Contains(order, name) {
			order = append(slices.Clip(order), name)
		}
	}
	var errs []error
	for _, name := range order {
		errs = append(errs, s.Stop(ctx, name, stop))
	}
	return errors.Join(errs...)
}

// Stop stops one unit. One that does not run, or that this machine never had, is no error.
func (s *Set[U]) Stop(ctx context.Context, name string, stop func(u U, ctx context.Context) error) error {
	var nobody U
	if u := s.Get(name); u != nobody {
		return stop(u, ctx)
	}
	return nil
}
