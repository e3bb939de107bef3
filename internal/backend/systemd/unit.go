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
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/durable"
	render "github.com/slipway-project/slipway/internal/render/systemd"
)

// unit is one service and what is known of it. systemd moves it; the agent only follows, except by run and stop.
//
//	         run                 exec                READY / probe
//	(none) ───────► start-pre ────────► running ──────────────► running, ready
//	  ▲              ▲    │ refused        │ dies                   │ dies
//	  │              │    ▼                ▼                        │
//	  │              └─ auto-restart ◄──────────────────────────────┘
//	  └── dead ◄─ deactivating ◄─ stop, from anywhere
type unit struct {
	host    *Host
	name    string
	service string
	object  string          // the last word of its object path
	wake    chan struct{}   // has a value when systemd has said that something changed
	ctx     context.Context //nolint:containedctx // ends with the unit or the Host
	cancel  context.CancelFunc
	ops     sync.Mutex // held while a step changes the unit; never taken by what follows systemd
	reading sync.Mutex // held from asking to noting, so that an older answer does not come last

	mu       sync.Mutex // guards the fields below
	rec      record
	state    state
	life     string             // invocation of the process that runs, while one does
	watched  time.Time          // since when this Host asks that process
	unwatch  context.CancelFunc // ends the questions to that process
	told     string             // invocation whose end has been told
	stopping bool               // it was told to end, by us
	reason   string             // why it is not ready
	hung     string             // why it was ended although nobody told it to, until its death is told
	changed  chan struct{}
}

func newUnit(h *Host, name string) *unit {
	service := render.ServiceName(h.conf.Prefix, name)
	u := &unit{
		host: h, name: name, service: service, object: sd.PathBusEscape(service),
		wake: make(chan struct{}, 1), changed: make(chan struct{}), unwatch: func() {},
	}
	u.ctx, u.cancel = context.WithCancel(h.ctx)
	return u
}

// keep looks at the unit whenever systemd says that it has changed.
func (u *unit) keep() {
	for {
		select {
		case <-u.ctx.Done():
			return
		case <-u.wake:
		}
		if err := u.refresh(u.ctx); err != nil && u.ctx.Err() == nil {
			u.host.conf.Log.Warn("unit not looked at", "unit", u.name, "error", err)
		}
	}
}

// refresh asks systemd how the unit is, and takes note.
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
	u.tellLocked()
	return nil
}

// recall reads what an earlier agent has noted. Of a unit with a damaged record only the name is known: what runs is exchanged when
// a plan says how it should run. Until then nothing is written over the record, and Begin starts nothing without one.
func (u *unit) recall() error {
	err := durable.Load(recordPath(u.host.conf.StateDir, u.name), recordSchema, &u.rec)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		u.host.conf.Log.Error("unit record not readable, its process is exchanged by the plan", "unit", u.name, "error", err)
		u.rec = record{Unit: plan.Unit{Name: u.name}}
		return nil
	}
	u.host.seen.Recall(u.rec.Inputs)
	return err
}

func (u *unit) tellLocked() {
	close(u.changed)
	u.changed = make(chan struct{})
}

// saveLocked writes the record, unless nobody knows how the unit should run: such a record would say, to whoever starts the unit by
// it, that there is nothing to look at before, such as data without which the unit must not begin.
func (u *unit) saveLocked() error {
	if !u.rec.isWhole() {
		return nil
	}
	if err := durable.Save(recordPath(u.host.conf.StateDir, u.name), recordSchema, u.rec); err != nil {
		return fmt.Errorf("unit %s: %w", u.name, err)
	}
	return nil
}

// saveOrLogLocked is for what goes on although it cannot be written.
func (u *unit) saveOrLogLocked() {
	if err := u.saveLocked(); err != nil {
		u.host.conf.Log.Error("unit record not written", "unit", u.name, "error", err)
	}
}

// lastStart is what was noted when the unit was started last, by whomever.
func (u *unit) lastStart() (begun, bool) {
	var b begun
	if err := durable.Load(begunPath(u.host.conf.StateDir, u.name), recordSchema, &b); err != nil {
		return begun{}, false
	}
	return b, true
}

// observe compares what runs with what is wanted.
func (u *unit) observe(e plan.Entry, spec plan.Unit, inputs []units.Input) plan.State {
	b, noted := u.lastStart()
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.state
	switch {
	case s.isGone() && u.rec.Unit.Name == "":
		return plan.State{Existence: plan.Absent, Detail: "it has never been started"}
	case s.isGone():
		return plan.State{Existence: plan.Absent, Detail: "it was stopped"}
	case s.isStopping() && u.life != "", u.stopping:
		return plan.State{Existence: plan.Present, Detail: "it is being stopped"}
	case u.life != "" && (!noted || b.Invocation != u.life):
		return plan.State{Existence: plan.Present, Detail: "nobody has noted how it was started"}
	case !u.rec.isWhole():
		return plan.State{Existence: plan.Present, Ready: u.rec.Ready && u.life != "", Detail: "its record was lost", Down: u.downLocked()}
	}
	was := u.rec.begun(b)
	why := was.Differs(spec, inputs)
	if why == "" && (s.stale || !u.fileIs(u.text(e, spec))) {
		why = "its unit file changed"
	}
	if why != "" {
		return plan.State{Existence: plan.Present, Ready: u.rec.Ready && u.life != "", Detail: why, Down: u.downLocked()}
	}
	u.settledLocked(spec, was, inputs)
	out := plan.State{Existence: plan.Present, Matches: true, Ready: u.rec.Ready && u.life != ""}
	if !out.Ready {
		out.Detail = u.reason
	}
	return out
}

// settledLocked takes note of what takes effect without a step, such as how the unit is asked. What Begin reads is written down.
func (u *unit) settledLocked(spec plan.Unit, was units.Begun, inputs []units.Input) {
	all, adopted := was.Adopt(inputs)
	guarded := u.rec.Unit.DataGuard == spec.DataGuard
	if u.rec.Unit = spec; !adopted && guarded {
		return
	}
	if adopted {
		u.rec.Inputs = all
	}
	u.saveOrLogLocked()
}

// downLocked tells that no process runs, or one that has not been of use for so long that nobody counts on it any more.
func (u *unit) downLocked() bool {
	switch {
	case u.life == "":
		return true
	case u.rec.Ready:
		return false
	}
	since := u.state.since
	if u.rec.Unwell.After(since) {
		since = u.rec.Unwell
	}
	if u.rec.Unwell.IsZero() && u.watched.After(since) {
		since = u.watched // it was started while no agent ran, and may have been well ever since
	}
	return time.Since(since) >= units.DownAfter
}

// await waits for readiness, through deaths and restarts.
func (u *unit) await(ctx context.Context, waiting func(reason string)) error {
	if err := u.refresh(ctx); err != nil {
		return err
	}
	last := ""
	for {
		u.mu.Lock()
		ready, gone, reason, changed := u.rec.Ready && u.life != "", u.state.isGone(), u.reason, u.changed
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
			return errGone
		}
	}
}

var errGone = errors.New("the host was closed, or the unit removed")

// state is what systemd says of a service.
type state struct {
	load, active, sub, result string
	invocation                string // of the latest start
	job                       bool   // systemd is going to start or stop it
	mainPID                   int
	exitCode, exitStatus      int32 // how the main process ended, once it has
	since                     time.Time
	exited                    time.Time
	stale                     bool // its unit file is newer than what systemd has read
}

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
	if job, _ := props["Job"].([]any); len(job) > 0 { // number and path
		id, _ := job[0].(uint32)
		s.job = id != 0
	}
	return s
}

// isGone: it does not run, and systemd is not going to start it.
func (s state) isGone() bool {
	return (s.active == "inactive" || s.active == "failed" || s.active == "") && !s.isBetween()
}

// isBetween: it has ended, and systemd is going to start it again.
func (s state) isBetween() bool { return strings.Contains(s.sub, "auto-restart") }

func (s state) isStopping() bool { return s.active == "deactivating" }

// The codes of waitid(2).
const (
	exitedCode = 1
	killedCode = 2
	dumpedCode = 3
)

// exit tells how the main process ended.
func (s state) exit() units.Exit {
	e := units.Exit{At: s.exited, Code: -1}
	switch s.exitCode {
	case exitedCode:
		e.Code = int(s.exitStatus)
	case killedCode, dumpedCode:
		e.Signal = syscall.Signal(s.exitStatus).String()
	default:
		e.Cause = "could not be started (" + s.result + ")"
	}
	if e.At.IsZero() {
		e.At = time.Now()
	}
	return e
}
