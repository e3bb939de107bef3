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

// askReady asks until the process is ready, then now and then whether it still is. It ends with ctx.
func (u *unit) askReady(ctx context.Context, p *process) {
	u.mu.Lock()
	pr, ready, wasReady := u.rec.Unit.Ready, u.rec.Ready, !u.rec.Unwell.IsZero()
	u.mu.Unlock()
	switch {
	case wasReady: // and an agent before this one has seen that it is not
	case !ready:
		if !u.awaitFirst(ctx, pr) {
			return
		}
		u.setReady(true, "")
	default:
		u.mu.Lock()
		u.readyAt = time.Now()
		u.mu.Unlock()
	}
	if pr.Kind != plan.ProbeNotify && pr.Kind != plan.ProbeNone {
		u.host.health().Watch(ctx, patient{u, p})
	}
}

func (u *unit) awaitFirst(ctx context.Context, pr plan.Probe) bool {
	u.setReason("waiting for " + pr.String())
	if pr.Kind == plan.ProbeNotify {
		if err := u.hear(ctx); err != nil {
			if ctx.Err() == nil {
				u.setReason("cannot hear READY=1: " + err.Error())
				u.host.conf.Log.Error("notify socket not usable", "unit", u.name, "error", err)
			}
			return false
		}
		return true
	}
	return u.host.conf.Probe.Await(ctx, pr, func(reason string) { u.setReason("waiting for " + pr.String() + ": " + reason) }) == nil
}

func (u *unit) setReady(ready bool, reason string) {
	pid := 0
	u.updateOrLog(func() {
		u.rec.Ready, u.rec.Unwell, u.reason, pid = ready, time.Time{}, reason, u.rec.PID
		if u.readyAt = (time.Time{}); ready {
			u.readyAt = time.Now()
		} else {
			u.rec.Unwell = time.Now()
		}
	})
	if ready {
		u.event(units.Ready, pid, "")
	} else {
		u.event(units.Unready, pid, reason)
	}
}

// patient shows the unit with its present process to who watches its health.
type patient struct {
	*unit
	proc *process
}

func (p patient) Standing() units.Standing {
	p.mu.Lock()
	defer p.mu.Unlock()
	return units.Standing{Probe: p.rec.Unit.Ready, Ready: p.rec.Ready, Unwell: p.rec.Unwell}
}

func (p patient) SetReady(ready bool, reason string) { p.setReady(ready, reason) }
func (p patient) SetReason(reason string)            { p.setReason(reason) }
func (p patient) EndHung(ctx context.Context)        { p.endHung(ctx, p.proc) }

// endHung ends the process; its death is then one like any other.
func (u *unit) endHung(ctx context.Context, p *process) {
	u.mu.Lock()
	limit, last := u.rec.Unit.StopTimeout, u.reason
	u.hung = fmt.Sprintf("ended because it did not answer for %s", u.host.conf.pace.hung)
	u.mu.Unlock()
	u.host.conf.Log.Warn("unit hangs, restarting it", "unit", u.name, "pid", p.pid, "last", last)
	u.setReason("hung, being ended")
	if err := u.end(ctx, p, time.Now().Add(cmp.Or(limit, defaultStopTimeout))); err != nil && ctx.Err() == nil {
		u.host.conf.Log.Error("hung unit not ended", "unit", u.name, "error", err)
	}
}

// hear waits for READY=1 on the unit's notify socket. See sd_notify(3).
func (u *unit) hear(ctx context.Context) error {
	path := u.host.notifyPath(u.name)
	u.mu.Lock()
	conn := u.ear
	u.ear = nil
	u.mu.Unlock()
	if conn == nil {
		var err error
		if conn, err = listenNotify(path); err != nil {
			return err
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Now()) })
	defer stop()
	defer conn.Close() //nolint:errcheck // nothing was written
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

// openEar opens the notify socket anew for each process, so that no word of the one before is taken for its own.
func (u *unit) openEar(spec plan.Unit) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closeEarLocked()
	if spec.Ready.Kind != plan.ProbeNotify {
		return nil
	}
	ear, err := listenNotify(u.host.notifyPath(u.name))
	u.ear = ear
	return err
}

func (u *unit) closeEarLocked() {
	if u.ear != nil {
		_ = u.ear.Close() // nothing was written
		u.ear = nil
	}
}

func listenNotify(path string) (*net.UnixConn, error) {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	return net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
}

// deafLocked: READY=1 is said once; an agent that came later may have missed it and can only ask for a restart.
func (u *unit) deafLocked() bool {
	return u.adopted && !u.rec.Ready && u.proc != nil && u.rec.Unit.Ready.Kind == plan.ProbeNotify && time.Since(u.adoptedAt) > u.host.conf.pace.deaf
}

func (h *Host) health() units.Health {
	return units.Health{Ask: h.conf.Probe.Ask, Period: h.conf.pace.health, Unwell: h.conf.pace.unwell, Hung: h.conf.pace.hung}
}
