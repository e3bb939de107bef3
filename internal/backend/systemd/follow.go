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

// followLocked updates the unit from a new state of its service. Intermediate states may be missing
// because signals only say that something has changed.
func (u *unit) followLocked(s state) {
	if u.invocation != "" && (s.mainPID == 0 || s.invocation != u.invocation) {
		u.exitedLocked(s)
	}
	switch {
	case u.invocation != "" && s.isStopping() && u.rec.Ready:
		u.rec.Ready, u.reason = false, "stopping"
		u.saveOrLogLocked()
	case u.invocation == "" && s.mainPID != 0 && !s.isStopping():
		u.startedLocked(s)
	case u.invocation == "" && (s.isRestarting() || s.active == "failed") && u.reported != s.invocation:
		u.exitedLocked(s) // a failed start, or a process that exited before it was observed
	}
	if u.invocation != "" && s.active == "active" && !u.rec.Ready && u.rec.Unit.Ready.Kind == plan.ProbeNotify {
		u.setReadyLocked(true, "")
	}
}

// startedLocked records a new process, whether the agent, systemd or a person started it, and starts to check
// its readiness.
func (u *unit) startedLocked(s state) {
	u.invocation, u.watchedSince, u.stopping = s.invocation, time.Now(), false
	if u.rec.Invocation != s.invocation { // otherwise an earlier agent has seen it
		if u.rec.Invocation != "" {
			u.rec.Restarts++
		}
		u.rec.Invocation, u.rec.Ready, u.rec.UnhealthySince = s.invocation, false, time.Time{}
		u.saveOrLogLocked()
		u.event(units.Started, s.mainPID, "")
	} else {
		u.host.conf.Log.Info("unit adopted", "unit", u.name, "pid", s.mainPID, "ready", u.rec.Ready)
	}
	if !u.rec.Ready && u.rec.UnhealthySince.IsZero() {
		u.reason = "waiting for " + u.rec.Unit.Ready.String()
	}
	ctx, cancel := context.WithCancel(u.ctx)
	u.unwatch = cancel
	i := instance{unit: u, id: s.invocation, probe: u.rec.Unit.Ready}
	first := !u.rec.Ready && u.rec.UnhealthySince.IsZero()
	u.host.running.Go(func() { i.watch(ctx, first) })
}

// exitedLocked records the exit of a process, or a failed start.
func (u *unit) exitedLocked(s state) {
	u.unwatch()
	exit := units.Exit{At: time.Now(), Code: -1, Lost: true} // it was restarted before its exit was observed
	if u.invocation == "" || s.invocation == u.invocation {
		exit = s.exit()
	}
	u.reported = cmp.Or(u.invocation, s.invocation)
	exit.Cause, u.hung = cmp.Or(u.hung, exit.Cause), ""
	u.rec.LastExit, u.rec.Ready, u.rec.UnhealthySince = &exit, false, time.Time{}
	u.invocation = ""
	u.saveOrLogLocked()
	if u.stopping {
		return
	}
	reason, crashes := exit.String(), 1
	b, noted := u.lastStart()
	if noted {
		crashes = max(1, b.Crashes) // it already counts this exit if systemd has restarted the unit
	}
	if noted && b.Invocation == u.reported {
		crashes = b.Crashes + 1
	}
	if noted && b.Refused != "" && b.Invocation == u.reported {
		reason = b.Refused
	} else if last := u.host.logs.LastLine(u.name); last != "" {
		reason += ", last output: " + last
	}
	if u.host.logs.Full() { // its last output did not reach the log
		reason += ", no space left on device (" + u.host.logs.Dir + ")"
	}
	if s.isGone() {
		reason += "; stopped by someone other than the agent (start it with systemctl start " + u.service + ")"
	} else {
		reason += fmt.Sprintf(" (%d in a row), systemd restarts it", crashes)
	}
	u.reason = reason
	u.host.conf.Log.Warn("unit exited", "unit", u.name, "reason", reason)
	u.event(units.Exited, 0, reason)
}

// setReadyLocked records a change of readiness, and the reason if the unit is unready.
func (u *unit) setReadyLocked(ready bool, reason string) {
	u.rec.Ready, u.rec.UnhealthySince, u.reason = ready, time.Time{}, reason
	if !ready {
		u.rec.UnhealthySince = time.Now()
	}
	u.saveOrLogLocked()
	u.notifyLocked()
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

// instance is one process of a unit. Updates that arrive after its end are ignored.
type instance struct {
	*unit
	id    string
	probe plan.Probe
}

// watch waits until the process is ready if it has not been, then checks its health until ctx ends.
func (i instance) watch(ctx context.Context, first bool) {
	if i.probe.Kind == plan.ProbeNotify { // systemd receives it
		return
	}
	if first {
		waiting := func(reason string) { i.SetReason("waiting for " + i.probe.String() + ": " + reason) }
		if i.host.conf.Probe.Await(ctx, i.probe, waiting) != nil {
			return
		}
		i.SetReady(true, "")
	}
	if i.probe.Kind != plan.ProbeNone {
		i.host.conf.health.Watch(ctx, i)
	}
}

// HealthStatus implements units.HealthTarget.
func (i instance) HealthStatus() units.HealthStatus {
	i.mu.Lock()
	defer i.mu.Unlock()
	return units.HealthStatus{Probe: i.rec.Unit.Ready, Ready: i.rec.Ready, UnhealthySince: i.rec.UnhealthySince}
}

// SetReady implements units.HealthTarget.
func (i instance) SetReady(ready bool, reason string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.unit.invocation == i.id && !i.stopping && !i.state.isStopping() {
		i.setReadyLocked(ready, reason)
	}
}

// SetReason implements units.HealthTarget.
func (i instance) SetReason(reason string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.unit.invocation == i.id && i.reason != reason {
		i.reason = reason
		i.notifyLocked()
	}
}

// EndHung implements units.HealthTarget. systemd restarts the unit as after any exit.
func (i instance) EndHung(ctx context.Context) {
	i.mu.Lock()
	limit, last := cmp.Or(i.rec.Unit.StopTimeout, defaultStopTimeout), i.reason
	i.hung = fmt.Sprintf("restarted because it was unhealthy for %s", i.host.conf.health.HungAfter)
	i.mu.Unlock()
	i.host.conf.Log.Warn("unit hung, restarting it", "unit", i.name, "reason", last)
	i.SetReason("hung, being stopped")
	err := i.host.bus.kill(ctx, i.service, sd.Main, syscall.SIGTERM)
	if err == nil && sleep.For(ctx, limit) == nil { // ctx ends with the process
		err = i.host.bus.kill(ctx, i.service, sd.Main, syscall.SIGKILL)
	}
	if err != nil && ctx.Err() == nil {
		i.host.conf.Log.Error("hung unit not ended", "unit", i.name, "error", err)
	}
}
