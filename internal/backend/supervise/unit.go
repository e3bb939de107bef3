// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/durable"
)

// unit is one supervised process and what is known of it.
//
//	          run                       READY / probe
//	(none) ─────────► starting ─► started ─────────► started, ready
//	  ▲                  ▲           │ dies               │ dies
//	  │                  │           ▼                    │
//	  │                  └─ delay ─ exited ◄──────────────┘
//	  └── stopped ◄─ stopping ◄─ stop, from anywhere
type unit struct {
	host *Host
	name string
	ops  sync.Mutex // held while a step changes the unit; never taken by the keeper

	mu        sync.Mutex // guards the fields below
	rec       record
	proc      *process // nil when there is none
	readyAt   time.Time
	reason    string // why it is not ready
	hung      string // why it was ended although nobody told it to, until its death is told
	crashes   int    // deaths in a row, for the delay
	restartAt time.Time
	adopted   bool
	adoptedAt time.Time
	ear       *net.UnixConn // notify socket of the current process, opened before it is started
	changed   chan struct{} // closed at each change, then replaced
	halt      context.CancelFunc
	halted    chan struct{} // closed when the keeper has ended
}

func newUnit(h *Host, name string) *unit {
	return &unit{host: h, name: name, changed: make(chan struct{})}
}

func (u *unit) observe(spec plan.Unit, inputs []units.Input) plan.State {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch u.rec.Phase {
	case "":
		return plan.State{Existence: plan.Absent, Detail: "it has never been started"}
	case stopped:
		return plan.State{Existence: plan.Absent, Detail: "it was stopped"}
	case stopping:
		if u.proc == nil || u.proc.isDone() {
			return plan.State{Existence: plan.Absent, Detail: "it was stopped"}
		}
		return plan.State{Existence: plan.Present, Detail: "it is being stopped"}
	case starting, started, exited:
	}
	if u.halt == nil { // nobody keeps it: a start was broken off
		return plan.State{Existence: plan.Absent, Detail: "its start was broken off"}
	}
	if why := u.rec.begun().Differs(spec, inputs); why != "" {
		return plan.State{Existence: plan.Present, Ready: u.rec.Ready, Detail: why, Down: u.downLocked()}
	}
	if u.deafLocked() {
		return plan.State{Existence: plan.Present, Detail: "it may have said READY=1 while no agent listened"}
	}
	u.rec.Unit = spec // how it is asked and stopped takes effect without a restart
	if all, adopted := u.rec.begun().Adopt(inputs); adopted {
		u.rec.Inputs = all
		if err := u.saveLocked(); err != nil { // the next agent finds out as this one has
			u.host.conf.Log.Error("unit record not written", "unit", u.name, "error", err)
		}
	}
	s := plan.State{Existence: plan.Present, Matches: true, Ready: u.rec.Ready}
	if !s.Ready {
		s.Detail = u.reason
	}
	return s
}

// downLocked tells that no process runs, or one that has not been of use for so long that nobody counts on it any more.
func (u *unit) downLocked() bool {
	switch {
	case u.rec.Ready:
		return false
	case u.proc == nil || u.proc.isDone():
		return true
	}
	since := u.rec.Since
	if u.rec.Unwell.After(since) {
		since = u.rec.Unwell
	}
	return time.Since(since) >= u.host.conf.pace.down
}

// await waits for readiness, through deaths and restarts.
func (u *unit) await(ctx context.Context, waiting func(reason string)) error {
	last := ""
	deafness := time.After(u.host.conf.pace.deaf) // when it may have come about
	for {
		u.mu.Lock()
		ready, kept, deaf, reason, changed := u.rec.Ready, u.halt != nil, u.deafLocked(), u.reason, u.changed
		u.mu.Unlock()
		switch {
		case ready:
			return nil
		case !kept:
			return fmt.Errorf("unit %s is not running", u.name)
		case deaf:
			return fmt.Errorf("unit %s: it may have said READY=1 while no agent listened", u.name)
		}
		if reason != "" && reason != last {
			waiting(reason)
			last = reason
		}
		select {
		case <-changed:
		case <-deafness:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// update changes the unit's state, wakes who waits for it, and writes the record.
func (u *unit) update(f func()) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	f()
	close(u.changed)
	u.changed = make(chan struct{})
	return u.saveLocked()
}

func (u *unit) saveLocked() error {
	if err := durable.Save(u.host.recordPath(u.name), recordSchema, u.rec); err != nil {
		return fmt.Errorf("unit %s: %w", u.name, err)
	}
	return nil
}

// updateOrLog is update for what must go on although it cannot be written.
func (u *unit) updateOrLog(f func()) {
	if err := u.update(f); err != nil {
		u.host.conf.Log.Error("unit record not written", "unit", u.name, "error", err)
	}
}

func (u *unit) setReason(reason string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.reason == reason {
		return
	}
	u.reason = reason
	close(u.changed)
	u.changed = make(chan struct{})
}

func (u *unit) current() *process {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.proc
}

// run makes a unit run as it should: started if it does not, exchanged if it runs otherwise or if that is asked for.
func (u *unit) run(ctx context.Context, spec plan.Unit, replace bool) error {
	u.ops.Lock()
	defer u.ops.Unlock()
	inputs, err := u.host.fingerprints(spec)
	if err != nil {
		return fmt.Errorf("start %s: %w", u.name, err)
	}
	if s := u.observe(spec, inputs); !replace && s.Existence == plan.Present && s.Matches {
		return nil
	}
	if err := u.stopLocked(ctx); err != nil {
		return err
	}
	u.mu.Lock()
	u.rec = record{Unit: spec, Phase: stopped, Restarts: u.rec.Restarts, LastExit: u.rec.LastExit}
	u.crashes, u.adopted = 0, false
	u.mu.Unlock()
	if err := u.start(); err != nil {
		return err
	}
	u.keep()
	return nil
}

// detach stops watching and leaves the process alone.
func (u *unit) detach() {
	u.haltKeeper()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closeEarLocked()
	if u.proc != nil {
		u.proc.forget()
	}
}

var errGone = errors.New("the host was closed")

const recordSchema = 1

// phase says what was last begun with a unit's process. It is written before the thing is done.
type phase string

const (
	starting phase = "starting" // a process with Token may exist; it is found by its cgroup and environment
	started  phase = "started"  // PID and Start name the process
	exited   phase = "exited"   // it died by itself; to be started again, or a oneshot that has run
	stopping phase = "stopping" // it was told to end
	stopped  phase = "stopped"
)

// record is what a later Host has to know of a unit. It is written on a file system that a boot empties.
type record struct {
	Boot     string        `json:"boot"`
	Unit     plan.Unit     `json:"unit"`
	Inputs   []units.Input `json:"inputs,omitempty"`
	Phase    phase         `json:"phase"`
	Token    string        `json:"token"` // of one start; a process whose token is not the record's must not go on
	PID      int           `json:"pid,omitempty"`
	Start    uint64        `json:"start,omitempty"` // field 22 of /proc/PID/stat: a PID may be used again, both never are
	Since    time.Time     `json:"since"`
	StopAt   time.Time     `json:"stopAt,omitzero"` // when it was first told to end
	Ready    bool          `json:"ready"`
	Unwell   time.Time     `json:"unwell,omitzero"` // since when it was ready once and does not answer any more
	Restarts int           `json:"restarts"`
	LastExit *units.Exit   `json:"lastExit,omitempty"`
}

// revision identifies how the process was started: what it is told and what its inputs held.
func (r record) revision() string {
	sum := sha256.New()
	_ = json.NewEncoder(sum).Encode(units.StartPart(r.Unit)) // plain strings and numbers: cannot fail
	for _, in := range r.Inputs {
		fmt.Fprintf(sum, "%s %s\n", in.Entry.Ref, in.Sum)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16]
}

func (r record) begun() units.Begun { return units.Begun{Unit: r.Unit, Inputs: r.Inputs, At: r.Since} }
