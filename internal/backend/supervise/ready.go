// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// checkReady waits until the process is ready, then checks its health until ctx ends.
func (u *unit) checkReady(ctx context.Context, p *process) {
	u.mu.Lock()
	pr, ready, wasHealthy := u.rec.Unit.Ready, u.rec.Ready, !u.rec.UnhealthySince.IsZero()
	u.mu.Unlock()
	switch {
	case wasHealthy: // an earlier agent has reported it as unhealthy
	case !ready:
		if !u.awaitReady(ctx, pr) {
			return
		}
		u.setReady(true, "")
	default:
		u.mu.Lock()
		u.readyAt = time.Now()
		u.mu.Unlock()
	}
	if pr.Kind != plan.ProbeNotify && pr.Kind != plan.ProbeNone {
		every := u.host.conf.intervals
		health := units.Health{Prober: u.host.conf.Probe, Period: every.health, UnhealthyPeriod: every.unhealthy, HungAfter: every.hung}
		health.Watch(ctx, healthTarget{u, p})
	}
}

// awaitReady waits until the process is ready for the first time. It returns false if ctx ends first.
func (u *unit) awaitReady(ctx context.Context, pr plan.Probe) bool {
	u.setReason("waiting for " + pr.String())
	if pr.Kind == plan.ProbeNotify {
		if err := u.awaitNotify(ctx); err != nil {
			if ctx.Err() == nil {
				u.setReason("cannot receive READY=1: " + err.Error())
				u.host.conf.Log.Error("notify socket not usable", "unit", u.name, "error", err)
			}
			return false
		}
		return true
	}
	return u.host.conf.Probe.Await(ctx, pr, func(reason string) { u.setReason("waiting for " + pr.String() + ": " + reason) }) == nil
}

// setReady records a change of readiness, and the reason if the unit is unready.
func (u *unit) setReady(ready bool, reason string) {
	pid := 0
	u.updateOrLog(func() {
		u.rec.Ready, u.rec.UnhealthySince, u.reason, pid = ready, time.Time{}, reason, u.rec.PID
		if u.readyAt = (time.Time{}); ready {
			u.readyAt = time.Now()
		} else {
			u.rec.UnhealthySince = time.Now()
		}
	})
	if ready {
		u.event(units.Ready, pid, "")
	} else {
		u.event(units.Unready, pid, reason)
	}
}

// healthTarget is the unit with one process, for health checks.
type healthTarget struct {
	*unit
	proc *process
}

func (p healthTarget) HealthStatus() units.HealthStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	return units.HealthStatus{Probe: p.rec.Unit.Ready, Ready: p.rec.Ready, UnhealthySince: p.rec.UnhealthySince}
}

func (p healthTarget) SetReady(ready bool, reason string) { p.setReady(ready, reason) }
func (p healthTarget) SetReason(reason string)            { p.setReason(reason) }
func (p healthTarget) EndHung(ctx context.Context)        { p.endHung(ctx, p.proc) }

// endHung ends a hung process. The watcher then restarts the unit as after any exit.
func (u *unit) endHung(ctx context.Context, p *process) {
	u.mu.Lock()
	limit, last := u.rec.Unit.StopTimeout, u.reason
	u.hung = fmt.Sprintf("restarted because it was unhealthy for %s", u.host.conf.intervals.hung)
	u.mu.Unlock()
	u.host.conf.Log.Warn("unit hung, restarting it", "unit", u.name, "pid", p.pid, "reason", last)
	u.setReason("hung, being stopped")
	if err := u.end(ctx, p, time.Now().Add(cmp.Or(limit, defaultStopTimeout))); err != nil && ctx.Err() == nil {
		u.host.conf.Log.Error("hung unit not ended", "unit", u.name, "error", err)
	}
}

// awaitNotify waits for READY=1 on the unit's notify socket. See sd_notify(3).
func (u *unit) awaitNotify(ctx context.Context) error {
	path := u.host.notifyPath(u.name)
	u.mu.Lock()
	conn := u.notifyConn
	u.notifyConn = nil
	u.mu.Unlock()
	if conn == nil {
		var err error
		if conn, err = listenNotify(path); err != nil {
			return err
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Now()) })
	defer stop()
	defer conn.Close() //nolint:errcheck // only read from
	buf := make([]byte, 4096)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return errors.Join(ctx.Err(), err)
		}
		for line := range strings.Lines(string(buf[:n])) {
			if strings.TrimSpace(line) == "READY=1" {
				return nil
			}
		}
	}
}

// openNotify opens a new notify socket for each process, so that messages of the previous process are not
// received.
func (u *unit) openNotify(spec plan.Unit) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closeNotifyLocked()
	if spec.Ready.Kind != plan.ProbeNotify {
		return nil
	}
	conn, err := listenNotify(u.host.notifyPath(u.name))
	u.notifyConn = conn
	return err
}

func (u *unit) closeNotifyLocked() {
	if u.notifyConn != nil {
		_ = u.notifyConn.Close() // only read from
		u.notifyConn = nil
	}
}

// listenNotify opens the socket and replaces an existing one.
func listenNotify(path string) (*net.UnixConn, error) {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	return net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
}

// missedNotifyLocked reports whether an adopted process has probably sent READY=1 while no agent was
// listening. It is sent only once, so only a restart helps.
func (u *unit) missedNotifyLocked() bool {
	return u.adopted && !u.rec.Ready && u.proc != nil && u.rec.Unit.Ready.Kind == plan.ProbeNotify && time.Since(u.adoptedAt) > u.host.conf.intervals.notify
}
