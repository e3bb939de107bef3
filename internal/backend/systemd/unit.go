// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"syscall"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"

	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/broadcast"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/durable"
	render "github.com/slipway-project/slipway/internal/render/systemd"
)

// unit is one service. systemd changes its state; the agent follows, except in run and stop.
//
//	         run                 exec                READY / probe
//	(none) ───────► start-pre ────────► running ──────────────► running, ready
//	  ▲              ▲    │ refused        │ exits                  │ exits
//	  │              │    ▼                ▼                        │
//	  │              └─ auto-restart ◄──────────────────────────────┘
//	  └── dead ◄─ deactivating ◄─ stop, from anywhere
type unit struct {
	host    *Host
	name    string
	service string
	object  string          // the last element of its object path
	wake    chan struct{}   // receives a value when systemd has signaled a change
	ctx     context.Context //nolint:containedctx // ends with the unit or the Host
	cancel  context.CancelFunc
	ops     sync.Mutex // held while a step changes the unit; never taken by followLoop
	reading sync.Mutex // held from request to update, so that an older response does not overwrite a newer one

	mu           sync.Mutex // guards the fields below
	rec          record
	state        state
	invocation   string             // invocation ID of the running process, "" if there is none
	watchedSince time.Time          // since when this Host checks that process
	unwatch      context.CancelFunc // stops the checks of that process
	reported     string             // invocation ID whose exit has been reported
	stopping     bool               // the agent has asked it to stop
	reason       string             // why it is not ready
	hung         string             // why the hung process was ended, until its exit is reported
	changed      broadcast.Signal
}

func newUnit(h *Host, name string) *unit {
	service := render.ServiceName(h.conf.Prefix, name)
	u := &unit{
		host: h, name: name, service: service, object: sd.PathBusEscape(service),
		wake: make(chan struct{}, 1), unwatch: func() {},
	}
	u.ctx, u.cancel = context.WithCancel(h.ctx)
	return u
}

// followLoop refreshes the unit whenever systemd signals a change.
func (u *unit) followLoop() {
	for {
		select {
		case <-u.ctx.Done():
			return
		case <-u.wake:
		}
		if err := u.refresh(u.ctx); err != nil && u.ctx.Err() == nil {
			u.host.conf.Log.Warn("unit state not refreshed", "unit", u.name, "error", err)
		}
	}
}

// refresh gets the unit's state from systemd and updates the unit.
func (u *unit) refresh(ctx context.Context) error {
	u.reading.Lock()
	defer u.reading.Unlock()
	s, err := u.host.bus.read(ctx, u.service)
	if err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.state = s
	if !u.rec.Unit.Oneshot {
		u.followLocked(s)
	}
	u.notifyLocked()
	return nil
}

// loadRecord reads the record of an earlier agent. If it is damaged, only the name is known: the process
// is replaced once a plan says how the unit should run. Until then the record is not overwritten, and
// PreStart refuses to start the unit.
func (u *unit) loadRecord() error {
	err := durable.Load(recordPath(u.host.conf.StateDir, u.name), recordSchema, &u.rec)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		u.host.conf.Log.Error("unit record not readable, the plan replaces its process", "unit", u.name, "error", err)
		u.rec = record{Unit: plan.Unit{Name: u.name}}
		return nil
	}
	u.host.entries.Restore(u.rec.Inputs)
	return err
}

// notifyLocked wakes all goroutines that wait for a change of the unit.
func (u *unit) notifyLocked() {
	u.changed.Notify()
}

// saveLocked writes the record. It writes nothing if the definition of the unit is unknown: PreStart would
// start a unit from such a record without its data guard.
func (u *unit) saveLocked() error {
	if !u.rec.isComplete() {
		return nil
	}
	if err := durable.Save(recordPath(u.host.conf.StateDir, u.name), recordSchema, u.rec); err != nil {
		return fmt.Errorf("unit %s: %w", u.name, err)
	}
	return nil
}

// saveOrLogLocked is saveLocked for changes that must proceed even if the record cannot be written. It
// logs the error.
func (u *unit) saveOrLogLocked() {
	if err := u.saveLocked(); err != nil {
		u.host.conf.Log.Error("unit record not written", "unit", u.name, "error", err)
	}
}

// lastStart returns the note of the last start, whether the agent, systemd or a person started the unit.
func (u *unit) lastStart() (startNote, bool) {
	var b startNote
	if err := durable.Load(startNotePath(u.host.conf.StateDir, u.name), recordSchema, &b); err != nil {
		return startNote{}, false
	}
	return b, true
}

// observe compares the running process with the plan.
func (u *unit) observe(e plan.Entry, spec plan.Unit, inputs []units.Input) plan.State {
	b, noted := u.lastStart()
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.state
	switch {
	case s.isGone() && u.rec.Unit.Name == "":
		return plan.State{Existence: plan.Absent, Detail: "it has never been started"}
	case s.isGone():
		return plan.State{Existence: plan.Absent, Detail: "it is stopped"}
	case s.isStopping() && u.invocation != "", u.stopping:
		return plan.State{Existence: plan.Present, Detail: "it is being stopped"}
	case u.invocation != "" && (!noted || b.Invocation != u.invocation):
		return plan.State{Existence: plan.Present, Detail: "it is unknown how it was started"}
	case !u.rec.isComplete():
		return plan.State{Existence: plan.Present, Ready: u.rec.Ready && u.invocation != "", Detail: "its record was lost", Down: u.downLocked()}
	}
	was := u.rec.startInfo(b)
	why := was.Differs(spec, inputs)
	if why == "" && (s.stale || !u.unitFileIs(u.text(e, spec))) {
		why = "its unit file changed"
	}
	if why != "" {
		return plan.State{Existence: plan.Present, Ready: u.rec.Ready && u.invocation != "", Detail: why, Down: u.downLocked()}
	}
	u.acceptLocked(spec, was, inputs)
	out := plan.State{Existence: plan.Present, Matches: true, Ready: u.rec.Ready && u.invocation != ""}
	if !out.Ready {
		out.Detail = u.reason
	}
	return out
}

// acceptLocked takes over settings that take effect without a step, such as the probe. Settings that
// PreStart reads are saved.
func (u *unit) acceptLocked(spec plan.Unit, was units.StartInfo, inputs []units.Input) {
	all, adopted := was.AddInputs(inputs)
	guarded := u.rec.Unit.DataGuard == spec.DataGuard
	if u.rec.Unit = spec; !adopted && guarded {
		return
	}
	if adopted {
		u.rec.Inputs = all
	}
	u.saveOrLogLocked()
}

// downLocked reports whether no process runs, or one that has been unready for long enough to count as
// down.
func (u *unit) downLocked() bool {
	switch {
	case u.invocation == "":
		return true
	case u.rec.Ready:
		return false
	}
	since := u.state.since
	if u.rec.UnhealthySince.After(since) {
		since = u.rec.UnhealthySince
	}
	if u.rec.UnhealthySince.IsZero() && u.watchedSince.After(since) {
		since = u.watchedSince // it was started while no agent ran, and may have been healthy since
	}
	return time.Since(since) >= units.DownAfter
}

// await waits until the unit is ready, across restarts. It returns an error if the unit is not running and
// will not be restarted.
func (u *unit) await(ctx context.Context, waiting func(reason string)) error {
	if err := u.refresh(ctx); err != nil {
		return err
	}
	last := ""
	for {
		u.mu.Lock()
		ready, gone, reason, changed := u.rec.Ready && u.invocation != "", u.state.isGone(), u.reason, u.changed.Wait()
		u.mu.Unlock()
		switch {
		case ready:
			return nil
		case gone:
			return fmt.Errorf("unit %s is not running", u.name)
		}
		if reason != "" && reason != last {
			waiting(reason)
			last = reason
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-u.ctx.Done():
			return errClosed
		}
	}
}

var errClosed = errors.New("the host was closed or the unit removed")

// state is the state of a service as reported by systemd.
type state struct {
	load, active, sub, result string
	invocation                string // of the last start
	job                       bool   // a start or stop is queued
	mainPID                   int
	exitCode, exitStatus      int32 // how the main process ended, if it has
	since                     time.Time
	exited                    time.Time
	stale                     bool // the unit file has changed since systemd loaded it
}

// stateOf extracts the state from the D-Bus properties of a service.
func stateOf(props map[string]any) state {
	text := func(name string) string { s, _ := props[name].(string); return s }
	stamp := func(name string) time.Time {
		if us, _ := props[name].(uint64); us != 0 {
			return time.UnixMicro(int64(us)) //nolint:gosec // microseconds since 1970
		}
		return time.Time{}
	}
	s := state{
		load: text("LoadState"), active: text("ActiveState"), sub: text("SubState"), result: text("Result"),
		since: stamp("ExecMainStartTimestamp"), exited: stamp("ExecMainExitTimestamp"),
	}
	if id, _ := props["InvocationID"].([]byte); len(id) > 0 {
		s.invocation = hex.EncodeToString(id)
	}
	pid, _ := props["MainPID"].(uint32)
	s.mainPID = int(pid)
	s.exitCode, _ = props["ExecMainCode"].(int32)
	s.exitStatus, _ = props["ExecMainStatus"].(int32)
	s.stale, _ = props["NeedDaemonReload"].(bool)
	if job, _ := props["Job"].([]any); len(job) > 0 { // job number and object path
		id, _ := job[0].(uint32)
		s.job = id != 0
	}
	return s
}

// isGone reports whether the unit does not run and systemd is not about to restart it.
func (s state) isGone() bool {
	return (s.active == "inactive" || s.active == "failed" || s.active == "") && !s.isRestarting()
}

// isRestarting reports whether the process has exited and systemd is about to restart it.
func (s state) isRestarting() bool { return strings.Contains(s.sub, "auto-restart") }

func (s state) isStopping() bool { return s.active == "deactivating" }

// The codes of waitid(2).
const (
	exitedCode = 1
	killedCode = 2
	dumpedCode = 3
)

// exit returns how the main process ended.
func (s state) exit() units.Exit {
	e := units.Exit{At: s.exited, Code: -1}
	switch s.exitCode {
	case exitedCode:
		e.Code = int(s.exitStatus)
	case killedCode, dumpedCode:
		e.Signal = syscall.Signal(s.exitStatus).String()
	default:
		e.Cause = "start failed (" + s.result + ")"
	}
	if e.At.IsZero() {
		e.At = time.Now()
	}
	return e
}
