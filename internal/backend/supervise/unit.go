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
	"github.com/slipway-project/slipway/internal/broadcast"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/durable"
)

// unit is one supervised process.
//
//	          run                       READY / probe
//	(none) ─────────► starting ─► started ─────────► started, ready
//	  ▲                  ▲           │ exits              │ exits
//	  │                  │           ▼                    │
//	  │                  └─ delay ─ exited ◄──────────────┘
//	  └── stopped ◄─ stopping ◄─ stop, from anywhere
type unit struct {
	host *Host
	name string
	ops  sync.Mutex // held while a step changes the unit; never taken by the watcher

	mu          sync.Mutex // guards the fields below
	rec         record
	proc        *process // nil if there is none
	readyAt     time.Time
	reason      string // why it is not ready
	hung        string // why the hung process was ended, until its exit is reported
	crashes     int    // crashes in a row, for the restart delay
	restartAt   time.Time
	adopted     bool
	adoptedAt   time.Time
	notifyConn  *net.UnixConn // notify socket of the current process, opened before its start
	changed     broadcast.Signal
	cancelWatch context.CancelFunc
	watchEnded  chan struct{} // closed when the watcher has ended
}

func newUnit(h *Host, name string) *unit {
	return &unit{host: h, name: name}
}

// observe compares the unit with what the plan wants. Settings that need no restart take effect here.
func (u *unit) observe(spec plan.Unit, inputs []units.Input) plan.State {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch u.rec.Phase {
	case "":
		return plan.State{Existence: plan.Absent, Detail: "it has never been started"}
	case stopped:
		return plan.State{Existence: plan.Absent, Detail: "it is stopped"}
	case stopping:
		if u.proc == nil || u.proc.isDone() {
			return plan.State{Existence: plan.Absent, Detail: "it is stopped"}
		}
		return plan.State{Existence: plan.Present, Detail: "it is being stopped"}
	case starting, started, exited:
	}
	if u.cancelWatch == nil { // not watched: a start was interrupted
		return plan.State{Existence: plan.Absent, Detail: "its start was interrupted"}
	}
	if why := u.rec.startInfo().Differs(spec, inputs); why != "" {
		return plan.State{Existence: plan.Present, Ready: u.rec.Ready, Detail: why, Down: u.downLocked()}
	}
	if u.missedNotifyLocked() {
		return plan.State{Existence: plan.Present, Detail: "it may have sent READY=1 while no agent was listening"}
	}
	u.rec.Unit = spec // changed probes and stop settings take effect without a restart
	if all, adopted := u.rec.startInfo().AddInputs(inputs); adopted {
		u.rec.Inputs = all
		if err := u.saveLocked(); err != nil { // the next agent adds the inputs again
			u.host.conf.Log.Error("unit record not written", "unit", u.name, "error", err)
		}
	}
	s := plan.State{Existence: plan.Present, Matches: true, Ready: u.rec.Ready}
	if !s.Ready {
		s.Detail = u.reason
	}
	return s
}

// downLocked reports whether no process runs, or one that has been unready for long enough to count as
// down.
func (u *unit) downLocked() bool {
	switch {
	case u.rec.Ready:
		return false
	case u.proc == nil || u.proc.isDone():
		return true
	}
	since := u.rec.Since
	if u.rec.UnhealthySince.After(since) {
		since = u.rec.UnhealthySince
	}
	return time.Since(since) >= u.host.conf.intervals.down
}

// await waits until the unit is ready, across restarts. It returns an error if the unit is not supervised
// or has missed its READY=1.
func (u *unit) await(ctx context.Context, waiting func(reason string)) error {
	last := ""
	missedAfter := time.After(u.host.conf.intervals.notify)
	for {
		u.mu.Lock()
		ready, watched, missed, reason, changed := u.rec.Ready, u.cancelWatch != nil, u.missedNotifyLocked(), u.reason, u.changed.Wait()
		u.mu.Unlock()
		switch {
		case ready:
			return nil
		case !watched:
			return fmt.Errorf("unit %s is not running", u.name)
		case missed:
			return fmt.Errorf("unit %s: it may have sent READY=1 while no agent was listening", u.name)
		}
		if reason != "" && reason != last {
			waiting(reason)
			last = reason
		}
		select {
		case <-changed:
		case <-missedAfter:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// update changes the unit's state, wakes waiting goroutines and writes the record.
func (u *unit) update(f func()) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	f()
	u.changed.Notify()
	return u.saveLocked()
}

func (u *unit) saveLocked() error {
	if err := durable.Save(u.host.recordPath(u.name), recordSchema, u.rec); err != nil {
		return fmt.Errorf("unit %s: %w", u.name, err)
	}
	return nil
}

// updateOrLog is update for changes that must proceed even if the record cannot be written. It logs the
// error.
func (u *unit) updateOrLog(f func()) {
	if err := u.update(f); err != nil {
		u.host.conf.Log.Error("unit record not written", "unit", u.name, "error", err)
	}
}

// setReason changes only the reason why the unit is not ready. It is not recorded.
func (u *unit) setReason(reason string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.reason == reason {
		return
	}
	u.reason = reason
	u.changed.Notify()
}

// current returns the unit's process, or nil.
func (u *unit) current() *process {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.proc
}

// run starts the unit, or restarts it if it differs from spec or if replace is set.
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
	u.startWatching()
	return nil
}

// detach stops watching and leaves the process running.
func (u *unit) detach() {
	u.stopWatching()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closeNotifyLocked()
	if u.proc != nil {
		u.proc.close()
	}
}

var errClosed = errors.New("the host was closed")

const recordSchema = 1

// phase is the last operation begun on a unit's process. It is recorded before the operation.
type phase string

const (
	starting phase = "starting" // a process with Token may exist; it is found by its cgroup and environment
	started  phase = "started"  // PID and Start identify the process
	exited   phase = "exited"   // it exited unexpectedly and is to be restarted, or it is a oneshot that has run
	stopping phase = "stopping" // it was asked to stop
	stopped  phase = "stopped"
)

// record is what a later Host must know about a unit. It is stored on a file system that is emptied at
// boot.
type record struct {
	Boot           string        `json:"boot"`
	Unit           plan.Unit     `json:"unit"`
	Inputs         []units.Input `json:"inputs,omitempty"`
	Phase          phase         `json:"phase"`
	Token          string        `json:"token"` // of one start; a starting process with another token exits
	PID            int           `json:"pid,omitempty"`
	Start          uint64        `json:"start,omitempty"` // field 22 of /proc/PID/stat; with it a reused PID is recognized
	Since          time.Time     `json:"since"`
	StopAt         time.Time     `json:"stopAt,omitzero"` // when it was first asked to stop
	Ready          bool          `json:"ready"`
	UnhealthySince time.Time     `json:"unhealthySince,omitzero"` // since when the unit, once ready, fails its health check
	Restarts       int           `json:"restarts"`
	LastExit       *units.Exit   `json:"lastExit,omitempty"`
}

// revision identifies how the process was started: its settings and the content of its inputs.
func (r record) revision() string {
	// Only the settings that take effect with a restart.
	u := plan.Unit{Name: r.Unit.Name, Args: r.Unit.Args, Env: r.Unit.Env, Dir: r.Unit.Dir, Oneshot: r.Unit.Oneshot, OOMScore: r.Unit.OOMScore}
	sum := sha256.New()
	_ = json.NewEncoder(sum).Encode(u) // plain strings and numbers: cannot fail
	for _, in := range r.Inputs {
		fmt.Fprintf(sum, "%s %s\n", in.Entry.Ref, in.Sum)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16]
}

func (r record) startInfo() units.StartInfo {
	return units.StartInfo{Unit: r.Unit, Inputs: r.Inputs, At: r.Since}
}
