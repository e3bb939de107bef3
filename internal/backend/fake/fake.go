// SPDX-License-Identifier: Apache-2.0

// Package fake is an in-memory host. It implements reconcile.Host with all guarantees of the hosttest
// suite, and simulates failures on request: steps fail, readiness is late, processes crash. It uses no
// files or processes, only timers of package time, and is never part of the shipped binary.
//
// Read [Host] first, then [Behaviour].
//
//	h := fake.New()
//	defer h.Close()
//	h.FailDo("unit/etcd", errors.New("no disk"), 2) // the next two steps of etcd fail
//	h.Behave("etcd", fake.Behaviour{ReadyAfter: time.Second})
package fake

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/broadcast"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// Host is an in-memory machine. It is safe for concurrent use.
type Host struct {
	mu        sync.Mutex // guards the fields below
	tree      map[string]node
	made      map[plan.Ref]plan.Item // certificates, artifacts and mounts
	seen      map[plan.Ref]plan.Item
	units     map[string]*unit
	behaviour map[string]Behaviour
	open      map[string]bool // preconditions, and units with HoldReady
	doing     map[string]*failure
	observing map[string]*failure
	steps     []plan.Step
	changed   broadcast.Signal
	closed    bool
}

var _ reconcile.Host = (*Host)(nil)

// New returns an empty host.
func New() *Host {
	return &Host{
		tree: map[string]node{}, made: map[plan.Ref]plan.Item{}, seen: map[plan.Ref]plan.Item{}, units: map[string]*unit{},
		behaviour: map[string]Behaviour{}, open: map[string]bool{}, doing: map[string]*failure{}, observing: map[string]*failure{},
	}
}

// Close stops all timers.
func (h *Host) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, u := range h.units {
		u.stopTimersLocked()
	}
}

// Steps returns the steps that were done, in order.
func (h *Host) Steps() []plan.Step {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.steps)
}

// Observe implements reconcile.Host.
func (h *Host) Observe(ctx context.Context, e plan.Entry) (plan.State, error) {
	if err := ctx.Err(); err != nil {
		return plan.State{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen[e.Ref] = e.Item
	if err := next(h.observing, e.Ref); err != nil {
		return plan.State{}, err
	}
	return h.observeLocked(e)
}

func (h *Host) observeLocked(e plan.Entry) (plan.State, error) {
	switch it := e.Item.(type) {
	case plan.Unit:
		return h.observeUnitLocked(it)
	case plan.Precondition:
		s := plan.State{Existence: plan.Present, Matches: true, Ready: h.open[it.Name]}
		if !s.Ready {
			s.Detail = "it is not fulfilled"
		}
		return s, nil
	}
	return h.observeFileLocked(e.Item), nil
}

// Do implements reconcile.Host.
func (h *Host) Do(ctx context.Context, s plan.Step, e plan.Entry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h.mu.Lock()
	h.seen[e.Ref] = e.Item
	err := next(h.doing, e.Ref)
	h.mu.Unlock()
	if err != nil {
		return err
	}
	if err := h.do(ctx, s, e); err != nil {
		return fmt.Errorf("%s: %w", e.Ref, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.steps = append(h.steps, s)
	h.changeLocked()
	return nil
}

func (h *Host) do(ctx context.Context, s plan.Step, e plan.Entry) error {
	switch it := e.Item.(type) {
	case plan.Unit:
		return h.doUnit(ctx, s.Verb, it)
	case plan.Precondition:
		if s.Verb != plan.Remove {
			return errors.New("a precondition is fulfilled by " + it.Provider + ", not by this host")
		}
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.doFileLocked(s.Verb, e.Item)
}

// Await implements reconcile.Host.
func (h *Host) Await(ctx context.Context, e plan.Entry, waiting func(reason string)) error {
	last := ""
	for {
		h.mu.Lock()
		h.seen[e.Ref] = e.Item
		s, err := h.observeLocked(e)
		changed := h.changed.Wait()
		h.mu.Unlock()
		switch {
		case err != nil:
			return err
		case s.Ready:
			return nil
		case s.Existence == plan.Absent || e.Item.Kind() != plan.KindUnit && e.Item.Kind() != plan.KindPrecondition:
			return fmt.Errorf("%s is not ready: %s", e.Ref, s.Detail)
		}
		if s.Detail != "" && s.Detail != last {
			waiting(s.Detail)
			last = s.Detail
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// changeLocked wakes all goroutines that wait for a change.
func (h *Host) changeLocked() {
	h.changed.Notify()
}

// Behaviour is what a unit's process does. The zero value runs until it is stopped and is ready
// immediately.
type Behaviour struct {
	ReadyAfter time.Duration
	HoldReady  bool // not ready before Open
	Exit       bool // exits immediately with Code
	Code       int
	Say        string // its last output
	IgnoreTerm bool
	Child      bool
}

// failure is an injected error.
type failure struct {
	err   error
	times int // below 0: no limit
}

// next returns the injected error of an entry, if it has failures left.
func next(all map[string]*failure, ref plan.Ref) error {
	t := all[ref.String()]
	if t == nil || t.times == 0 {
		return nil
	}
	if t.times > 0 {
		t.times--
	}
	return t.err
}

// FailDo makes the next steps of an entry ("unit/etcd") fail. If times is below 0, steps fail until the
// next call.
func (h *Host) FailDo(ref string, err error, times int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.doing[ref] = &failure{err, times}
}

// FailObserve makes the next observations of an entry fail, so that its state is unknown.
func (h *Host) FailObserve(ref string, err error, times int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.observing[ref] = &failure{err, times}
}

// Behave sets the behaviour of a unit's processes from the next start on.
func (h *Host) Behave(unit string, b Behaviour) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.behaviour[unit] = b
}

// Open fulfills a precondition, or makes a unit with HoldReady ready.
func (h *Host) Open(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open[name] = true
	if u := h.units[name]; u != nil {
		u.readyLocked(h)
	}
	h.changeLocked()
}

// Crash kills a unit's main process. The host restarts it after a delay.
func (h *Host) Crash(unit string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if u := h.units[unit]; u != nil && u.running {
		u.crashedLocked(h, "ended by signal: killed")
	}
}

// Starts returns the number of processes that a unit has had.
func (h *Host) Starts(name string) int {
	return withUnit(h, name, func(u *unit) int { return u.starts })
}

// Running returns the number of a unit's running processes, children included.
func (h *Host) Running(name string) int {
	return withUnit(h, name, func(u *unit) int {
		if u.running {
			return 1 + u.children
		}
		return u.children
	})
}

// Signals returns the signals that a unit's processes have received.
func (h *Host) Signals(name string) []string {
	return withUnit(h, name, func(u *unit) []string { return append([]string(nil), u.signals...) })
}

func withUnit[T any](h *Host, name string, f func(*unit) T) (answer T) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if u := h.units[name]; u != nil {
		return f(u)
	}
	return answer
}

// Write writes a file, bypassing the loop.
func (h *Host) Write(path string, mode fs.FileMode, content string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.parentsLocked(path)
	h.tree[path] = node{mode: mode, content: content}
}

// Read returns the mode and content of a file.
func (h *Host) Read(path string) (mode fs.FileMode, content string, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n, ok := h.tree[path]
	return n.mode, n.content, ok
}

// Forget loses a certificate, an artifact or a mount, as if it had never been made.
func (h *Host) Forget(ref string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for r := range h.made {
		if r.String() == ref {
			delete(h.made, r)
		}
	}
}
