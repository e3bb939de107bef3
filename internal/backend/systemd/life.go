// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"cmp"
	"context"
	"fmt"
	"syscall"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"

	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/sleep"
)

const defaultStopTimeout = 10 * time.Second

// followLocked draws the conclusions of a state. States may be skipped, for a signal only says that something has changed.
func (u *unit) followLocked(s state) {
	if u.life != "" && (s.mainPID == 0 || s.invocation != u.life) {
		u.endLocked(s)
	}
	switch {
	case u.life != "" && s.isStopping() && u.rec.Ready:
		u.rec.Ready, u.reason = false, "it is being stopped"
		u.saveOrLogLocked()
	case u.life == "" && s.mainPID != 0 && !s.isStopping():
		u.beginLocked(s)
	case u.life == "" && (s.isBetween() || s.active == "failed") && u.told != s.invocation:
		u.endLocked(s) // a start that led to no process, or to one that had ended before we looked
	}
	if u.life != "" && s.active == "active" && !u.rec.Ready && u.rec.Unit.Ready.Kind == plan.ProbeNotify {
		u.setReadyLocked(true, "")
	}
}

// beginLocked takes note of a new process, whoever started it, and asks it until it is ready.
func (u *unit) beginLocked(s state) {
	u.life, u.watched, u.stopping = s.invocation, time.Now(), false
	if u.rec.Life != s.invocation { // otherwise an agent before this one has watched it
		if u.rec.Life != "" {
			u.rec.Restarts++
		}
		u.rec.Life, u.rec.Ready, u.rec.Unwell = s.invocation, false, time.Time{}
		u.saveOrLogLocked()
		u.event(units.Started, s.mainPID, "")
	} else {
		u.host.conf.Log.Info("unit adopted", "unit", u.name, "pid", s.mainPID, "ready", u.rec.Ready)
	}
	if !u.rec.Ready && u.rec.Unwell.IsZero() {
		u.reason = "waiting for " + u.rec.Unit.Ready.String()
	}
	ctx, cancel := context.WithCancel(u.ctx)
	u.unwatch = cancel
	l := life{unit: u, id: s.invocation, probe: u.rec.Unit.Ready}
	first := !u.rec.Ready && u.rec.Unwell.IsZero()
	u.host.running.Go(func() { l.watch(ctx, first) })
}

// endLocked takes note of the end of a process, or of a start that led to none.
func (u *unit) endLocked(s state) {
	u.unwatch()
	exit := units.Exit{At: time.Now(), Code: -1, Lost: true} // it was started again before we looked
	if u.life == "" || s.invocation == u.life {
		exit = s.exit()
	}
	u.told = cmp.Or(u.life, s.invocation)
	exit.Cause, u.hung = cmp.Or(u.hung, exit.Cause), ""
	u.rec.LastExit, u.rec.Ready, u.rec.Unwell = &exit, false, time.Time{}
	u.life = ""
	u.saveOrLogLocked()
	if u.stopping {
		return
	}
	reason, deaths := exit.String(), 1
	b, noted := u.lastStart()
	if noted {
		deaths = max(1, b.Deaths) // it counts this one already if it was started again before we looked
	}
	if noted && b.Invocation == u.told {
		deaths = b.Deaths + 1
	}
	if noted && b.Refused != "" && b.Invocation == u.told {
		reason = b.Refused
	} else if last := u.host.logs.LastLine(u.name); last != "" {
		reason += " after saying: " + last
	}
	if u.host.logs.Full() { // what it said last did not reach its log
		reason += " with no space left on device (" + u.host.logs.Dir + ")"
	}
	if s.isGone() {
		reason += "; it was stopped, and not by this agent: start it with systemctl start " + u.service
	} else {
		reason += fmt.Sprintf(" (%d in a row), systemd starts it again", deaths)
	}
	u.reason = reason
	u.host.conf.Log.Warn("unit died", "unit", u.name, "why", reason)
	u.event(units.Exited, 0, reason)
}

func (u *unit) setReadyLocked(ready bool, reason string) {
	u.rec.Ready, u.rec.Unwell, u.reason = ready, time.Time{}, reason
	if !ready {
		u.rec.Unwell = time.Now()
	}
	u.saveOrLogLocked()
	u.tellLocked()
	if ready {
		u.event(units.Ready, u.state.mainPID, "")
	} else {
		u.event(units.Unready, u.state.mainPID, reason)
	}
}

func (u *unit) event(kind units.EventKind, pid int, detail string) {
	u.host.conf.Log.Debug("unit "+string(kind), "unit", u.name, "pid", pid, "detail", detail)
	u.host.conf.OnEvent(units.Event{At: time.Now(), Unit: u.name, Kind: kind, PID: pid, Detail: detail})
}

// life is one process of a unit, from its start to its end. What is said of it later concerns nobody.
type life struct {
	*unit
	id    string
	probe plan.Probe
}

// watch asks until the process is ready, and then now and then whether it still is. It ends with ctx.
func (l life) watch(ctx context.Context, first bool) {
	if l.probe.Kind == plan.ProbeNotify { // systemd hears it
		return
	}
	if first {
		told := func(reason string) { l.SetReason("waiting for " + l.probe.String() + ": " + reason) }
		if l.host.conf.Probe.Await(ctx, l.probe, told) != nil {
			return
		}
		l.SetReady(true, "")
	}
	if l.probe.Kind != plan.ProbeNone {
		l.host.conf.health.Watch(ctx, l)
	}
}

// Standing tells where the unit stands, see units.Patient.
func (l life) Standing() units.Standing {
	l.mu.Lock()
	defer l.mu.Unlock()
	return units.Standing{Probe: l.rec.Unit.Ready, Ready: l.rec.Ready, Unwell: l.rec.Unwell}
}

// SetReady notes that the process has become ready, or is no more, see units.Patient.
func (l life) SetReady(ready bool, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unit.life == l.id && !l.stopping && !l.state.isStopping() {
		l.setReadyLocked(ready, reason)
	}
}

// SetReason notes why the process is not ready, see units.Patient.
func (l life) SetReason(reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unit.life == l.id && l.reason != reason {
		l.reason = reason
		l.tellLocked()
	}
}

// EndHung ends the process, see units.Patient; its death is then one like any other.
func (l life) EndHung(ctx context.Context) {
	l.mu.Lock()
	limit, last := cmp.Or(l.rec.Unit.StopTimeout, defaultStopTimeout), l.reason
	l.hung = fmt.Sprintf("ended because it did not answer for %s", l.host.conf.health.Hung)
	l.mu.Unlock()
	l.host.conf.Log.Warn("unit hangs, restarting it", "unit", l.name, "last", last)
	l.SetReason("hung, being ended")
	err := l.host.bus.kill(ctx, l.service, sd.Main, syscall.SIGTERM)
	if err == nil && sleep.For(ctx, limit) == nil { // ctx ends with the process
		err = l.host.bus.kill(ctx, l.service, sd.Main, syscall.SIGKILL)
	}
	if err != nil && ctx.Err() == nil {
		l.host.conf.Log.Error("hung unit not ended", "unit", l.name, "error", err)
	}
}
