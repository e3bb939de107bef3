// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"io/fs"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
)

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
