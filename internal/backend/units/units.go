// SPDX-License-Identifier: Apache-2.0

// Package units is shared by the supervisors of a plan's units, whichever program runs the processes: it
// decides whether a running process differs from the plan, how long to wait before a restart, and whether
// a process is healthy, and it keeps the logs. It runs no processes and knows no supervisor.
//
// Read [StartInfo] and [EntryCache] first, then [Health].
//
//	inputs, err := cache.Fingerprints(spec, files.Fingerprint)
//	why := units.StartInfo{Unit: old, Inputs: oldInputs}.Differs(spec, inputs) // "its arguments changed"
package units

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// Files is the host of all items that are not units. *files.Host implements it.
type Files interface {
	reconcile.Host
	Fingerprint(item plan.Item) (string, error)
}

// Prober runs readiness probes. *probe.Prober implements it.
type Prober interface {
	Ask(ctx context.Context, pr plan.Probe) error
	Await(ctx context.Context, pr plan.Probe, waiting func(reason string)) error
}

// EventKind is the kind of an Event.
type EventKind string

// The kinds of event.
const (
	Started EventKind = "started"
	Ready   EventKind = "ready"
	Unready EventKind = "unready" // the process runs but fails its health check
	Exited  EventKind = "exited"  // the process ended unexpectedly and will be restarted
	Done    EventKind = "done"    // a oneshot has ended, successfully or not
	Stopped EventKind = "stopped" // the supervisor stopped the process
)

// Event is one change of a unit's state.
type Event struct {
	At     time.Time
	Unit   string
	Kind   EventKind
	PID    int
	Detail string
}

// Status describes a unit.
type Status struct {
	Name      string    `json:"name"`
	PID       int       `json:"pid,omitempty"` // 0 if it is not running
	Since     time.Time `json:"since"`         // time of the last start
	Ready     bool      `json:"ready"`
	Waiting   string    `json:"waiting,omitempty"` // why it is not ready
	Restarts  int       `json:"restarts"`
	LastExit  *Exit     `json:"lastExit,omitempty"`
	RestartAt time.Time `json:"restartAt,omitzero"` // time of the next restart; zero unless the unit is waiting for it
	Oneshot   bool      `json:"oneshot,omitempty"`
}

// Exit says how a process ended.
type Exit struct {
	At     time.Time `json:"at"`
	Code   int       `json:"code"`             // -1 if a signal ended it or the code is unknown
	Signal string    `json:"signal,omitempty"` // "killed", "terminated", …
	Lost   bool      `json:"lost,omitempty"`   // the exit code is unknown because the process was not a child of the agent
	Cause  string    `json:"cause,omitempty"`  // why the supervisor ended a hung process
}

func (e Exit) String() string {
	switch {
	case e.Cause != "":
		return e.Cause
	case e.Lost:
		return "ended with unknown exit code"
	case e.Signal != "":
		return "ended by signal: " + e.Signal
	}
	return "exited with " + strconv.Itoa(e.Code)
}

// Set holds the units of a host by name. The zero value is ready to use. It is safe for concurrent use.
type Set[U comparable] struct {
	mu    sync.Mutex // guards the field below
	units map[string]U
}

// Get returns the named unit, or the zero U if there is none.
func (s *Set[U]) Get(name string) U {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.units[name]
}

// GetOrNew returns the named unit, and creates it first if there is none. create must not use the set.
func (s *Set[U]) GetOrNew(name string, create func() U) U {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, ok := s.units[name]
	if !ok {
		u = create()
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

// Delete removes u, unless another unit has its name by now.
func (s *Set[U]) Delete(name string, u U) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.units[name] == u {
		delete(s.units, name)
	}
}

// Names returns the names of the units, sorted.
func (s *Set[U]) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.units))
}

// All returns the units, sorted by name.
func (s *Set[U]) All() []U {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []U
	for _, name := range slices.Sorted(maps.Keys(s.units)) {
		all = append(all, s.units[name])
	}
	return all
}

// StopAll stops the units in order one after the other, then all others. It continues after errors and
// returns them all. Names without a unit are ignored.
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

// Stop stops one unit. It returns nil if the unit does not exist.
func (s *Set[U]) Stop(ctx context.Context, name string, stop func(u U, ctx context.Context) error) error {
	var none U
	if u := s.Get(name); u != none {
		return stop(u, ctx)
	}
	return nil
}
