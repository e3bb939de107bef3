// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"cmp"
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/slipway-project/slipway/internal/backend/units"
)

const defaultStopTimeout = 10 * time.Second

// stop ends the unit's process: SIGTERM, and SIGKILL when that has not helped in time. When ctx ends first the process has
// been told, the record says so, and the next stop goes on from there.
func (u *unit) stop(ctx context.Context) error {
	u.ops.Lock()
	defer u.ops.Unlock()
	return u.stopLocked(ctx)
}

func (u *unit) stopLocked(ctx context.Context) error {
	u.haltKeeper()
	u.mu.Lock()
	p, spec, never := u.proc, u.rec.Unit, u.rec.Phase == ""
	u.mu.Unlock()
	if never {
		return nil
	}
	if p != nil {
		var since time.Time
		if err := u.update(func() {
			if u.rec.Phase != stopping || u.rec.StopAt.IsZero() {
				u.rec.StopAt = time.Now()
			}
			u.rec.Phase, u.rec.Ready, u.reason, since = stopping, false, "it is being stopped", u.rec.StopAt
		}); err != nil {
			return err
		}
		if err := u.end(ctx, p, since.Add(cmp.Or(spec.StopTimeout, defaultStopTimeout))); err != nil {
			return fmt.Errorf("stop %s: %w", u.name, err)
		}
		p.forget()
		u.event(units.Stopped, p.pid, p.exit.String())
	}
	if spec.KillChildren {
		if err := u.host.cgroups.kill(ctx, u.name); err != nil {
			return fmt.Errorf("stop %s: %w", u.name, err)
		}
	}
	return u.update(func() {
		u.rec.Phase, u.rec.PID, u.rec.Start, u.rec.Ready = stopped, 0, 0, false
		u.proc, u.restartAt, u.reason = nil, time.Time{}, "it was stopped"
		if p != nil {
			u.rec.LastExit = &p.exit
		}
	})
}

// end sends SIGTERM once, for some programs take a second one as an order to drop everything, and SIGKILL at the deadline,
// which does not move when a stop that was broken off is tried again.
func (u *unit) end(ctx context.Context, p *process, deadline time.Time) error {
	if p.isDone() {
		return nil
	}
	if !p.told {
		if err := p.signal(syscall.SIGTERM); err != nil {
			return err
		}
		p.told = true
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-u.host.ctx.Done():
		return errGone
	case <-timer.C:
	}
	u.host.conf.Log.Warn("unit killed: it did not end in time", "unit", u.name, "pid", p.pid)
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-u.host.ctx.Done():
		return errGone
	}
}
