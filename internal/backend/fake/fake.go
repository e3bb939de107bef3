// SPDX-License-Identifier: Apache-2.0

// Package fake is a host in memory: it keeps every promise of reconcile.Host, as the suite in hosttest says, and does on
// request what a bad day does: steps fail, readiness is late, processes die. It touches no file and no process, uses only the
// time package's timers, and is never part of what ships.
//
// Read [Host] first, then [Behaviour] and the methods of trouble.go.
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

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// Host is a machine in memory, empty at first. It is safe for concurrent use.
type Host struct {
	mu        sync.Mutex // guards the fields below
	tree      map[string]node
	made      map[plan.Ref]plan.Item // certificates, artifacts and mounts
	seen      map[plan.Ref]plan.Item
	units     map[string]*unit
	behaviour map[string]Behaviour
	open      map[string]bool // gates, and units that hold their readiness
	doing     map[string]*trouble
	observing map[string]*trouble
	steps     []plan.Step
	changed   chan struct{} // closed at each change, then replaced
	closed    bool
}

var _ reconcile.Host = (*Host)(nil)

// New is an empty host.
func New() *Host {
	return &Host{
		tree: map[string]node{}, made: map[plan.Ref]plan.Item{}, seen: map[plan.Ref]plan.Item{}, units: map[string]*unit{},
		behaviour: map[string]Behaviour{}, open: map[string]bool{}, doing: map[string]*trouble{}, observing: map[string]*trouble{},
		changed: make(chan struct{}),
	}
}

// Close ends all timers.
func (h *Host) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, u := range h.units {
		u.endTimersLocked()
	}
}

// Steps lists the steps that were done, in order.
func (h *Host) Steps() []plan.Step {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.steps)
}

// Observe tells the entry's state, see reconcile.Host.
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
			s.Detail = "it is closed"
		}
		return s, nil
	}
	return h.observeFileLocked(e.Item), nil
}

// Do carries out one step, see reconcile.Host.
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
			return errors.New("a gate is opened by " + it.Provider + ", not by this host")
		}
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.doFileLocked(s.Verb, e.Item)
}

// Await blocks until the entry is ready, see reconcile.Host.
func (h *Host) Await(ctx context.Context, e plan.Entry, waiting func(reason string)) error {
	last := ""
	for {
		h.mu.Lock()
		h.seen[e.Ref] = e.Item
		s, err := h.observeLocked(e)
		changed := h.changed
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

func (h *Host) changeLocked() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// Behaviour is what a unit's process does. The zero value runs until it is told to end and is ready at once.
type Behaviour struct {
	ReadyAfter time.Duration
	HoldReady  bool // not ready before Open
	Exit       bool // ends at once, with Code
	Code       int
	Say        string // its last words
	IgnoreTerm bool
	Child      bool
}

// trouble is an error that comes some times.
type trouble struct {
	err   error
	times int // below 0: for ever
}

func next(all map[string]*trouble, ref plan.Ref) error {
	t := all[ref.String()]
	if t == nil || t.times == 0 {
		return nil
	}
	if t.times > 0 {
		t.times--
	}
	return t.err
}

// FailDo lets the next steps of an entry ("unit/etcd") fail; times below 0 means until it is called again.
func (h *Host) FailDo(ref string, err error, times int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.doing[ref] = &trouble{err, times}
}

// FailObserve lets the next observations of an entry fail: its state is unknown.
func (h *Host) FailObserve(ref string, err error, times int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.observing[ref] = &trouble{err, times}
}

// Behave says how the processes of a unit behave from the next start on.
func (h *Host) Behave(unit string, b Behaviour) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.behaviour[unit] = b
}

// Open opens a gate, or lets a unit with HoldReady become ready.
func (h *Host) Open(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open[name] = true
	if u := h.units[name]; u != nil {
		u.readyLocked(h)
	}
	h.changeLocked()
}

// Shut closes a gate again.
func (h *Host) Shut(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open[name] = false
	h.changeLocked()
}

// Crash ends a unit's main process. It is started again after a delay, as by any host.
func (h *Host) Crash(unit string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if u := h.units[unit]; u != nil && u.running {
		u.diedLocked(h, "ended by signal: killed")
	}
}

// Starts counts the processes that a unit has ever had.
func (h *Host) Starts(name string) int { return ask(h, name, func(u *unit) int { return u.starts }) }

// Running counts a unit's processes, children included.
func (h *Host) Running(name string) int {
	return ask(h, name, func(u *unit) int {
		if u.running {
			return 1 + u.children
		}
		return u.children
	})
}

// Signals lists what a unit's processes have heard.
func (h *Host) Signals(name string) []string {
	return ask(h, name, func(u *unit) []string { return append([]string(nil), u.signals...) })
}

func ask[T any](h *Host, name string, f func(*unit) T) (answer T) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if u := h.units[name]; u != nil {
		return f(u)
	}
	return answer
}

// Write puts a file there behind the loop's back.
func (h *Host) Write(path string, mode fs.FileMode, content string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.parentsLocked(path)
	h.tree[path] = node{mode: mode, content: content}
}

// Read tells what a path holds.
func (h *Host) Read(path string) (mode fs.FileMode, content string, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n, ok := h.tree[path]
	return n.mode, n.content, ok
}

// Forget loses an entry that is neither file nor unit, as if it had never been made: a certificate, an artifact, a mount.
func (h *Host) Forget(ref string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for r := range h.made {
		if r.String() == ref {
			delete(h.made, r)
		}
	}
}
