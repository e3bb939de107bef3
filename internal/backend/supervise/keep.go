// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"fmt"
	"time"

	"github.com/slipway-project/slipway/internal/backend/units"
)

// keep starts the goroutine that watches the unit and starts it again when it dies. There is one at most.
func (u *unit) keep() {
	ctx, cancel := context.WithCancel(u.host.ctx)
	halted := make(chan struct{})
	u.mu.Lock()
	u.halt, u.halted = cancel, halted
	u.mu.Unlock()
	u.host.running.Go(func() {
		defer close(halted)
		u.keepUntil(ctx)
	})
}

func (u *unit) haltKeeper() {
	u.mu.Lock()
	halt, halted := u.halt, u.halted
	u.halt, u.halted = nil, nil
	u.mu.Unlock()
	if halt != nil {
		halt()
		<-halted
	}
}

func (u *unit) keepUntil(ctx context.Context) {
	for {
		if p := u.current(); p != nil {
			if !u.watchUntilExit(ctx, p) {
				return
			}
			u.died(p)
		}
		if !u.waitForRestart(ctx) {
			return
		}
		if err := u.restart(ctx); err != nil {
			u.host.conf.Log.Warn("unit not started", "unit", u.name, "error", err)
			u.delay(err.Error())
		}
	}
}

// watchUntilExit asks for readiness while the process lives, and reports whether it has died.
func (u *unit) watchUntilExit(ctx context.Context, p *process) (died bool) {
	asking, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	u.host.running.Go(func() {
		defer close(ended)
		u.askReady(asking, p)
	})
	select {
	case <-ctx.Done():
	case <-p.done:
		died = true
	}
	cancel()
	<-ended
	return died
}

func (u *unit) died(p *process) {
	p.forget()
	exit := p.exit
	u.mu.Lock()
	if !u.readyAt.IsZero() && time.Since(u.readyAt) >= units.SoundAfter {
		u.crashes = 0
	}
	exit.Cause, u.hung = u.hung, ""
	u.mu.Unlock()
	last, reason := u.host.logs.LastLine(u.name), exit.String()
	u.host.conf.Log.Warn("unit died", "unit", u.name, "pid", p.pid, "exit", reason, "said", last)
	if u.host.logs.Full() { // what it said last did not reach its log
		reason += " with no space left on device (" + u.host.conf.LogDir + ")"
	}
	if last != "" {
		reason += " after saying: " + last
	}
	u.event(units.Exited, p.pid, reason)
	u.updateOrLog(func() { u.proc, u.rec.PID, u.rec.Start, u.rec.LastExit = nil, 0, 0, &exit })
	u.delay(reason)
}

// delay decides when the unit is started next.
func (u *unit) delay(reason string) {
	u.updateOrLog(func() {
		wait := units.RestartDelay(u.crashes)
		u.crashes++
		u.rec.Phase, u.rec.Ready, u.readyAt = exited, false, time.Time{}
		u.restartAt = time.Now().Add(wait)
		u.reason = fmt.Sprintf("%s (%d in a row), starting again in %s", reason, u.crashes, wait.Round(10*time.Millisecond))
	})
}

func (u *unit) waitForRestart(ctx context.Context) bool {
	u.mu.Lock()
	at := u.restartAt
	u.mu.Unlock()
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

func (u *unit) restart(ctx context.Context) error {
	u.mu.Lock()
	spec := u.rec.Unit
	u.rec.Restarts++
	u.mu.Unlock()
	if spec.KillChildren { // what the dead process left behind would hold its ports and files
		if err := u.host.cgroups.kill(ctx, u.name); err != nil {
			return err
		}
	}
	return u.start()
}
