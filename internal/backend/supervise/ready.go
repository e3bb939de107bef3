// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
)

// healthFails is how many questions in a row a ready unit may leave unanswered.
const healthFails = 3

// askReady asks until the process is ready, then now and then whether it still is. It ends with ctx.
func (u *unit) askReady(ctx context.Context) {
	u.mu.Lock()
	pr, ready := u.rec.Unit.Ready, u.rec.Ready
	u.mu.Unlock()
	if !ready {
		if !u.awaitFirst(ctx, pr) {
			return
		}
		u.setReady(true, "")
	} else {
		u.mu.Lock()
		u.readyAt = time.Now()
		u.mu.Unlock()
	}
	if pr.Kind != plan.ProbeNotify && pr.Kind != plan.ProbeNone {
		u.watchHealth(ctx)
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
		u.rec.Ready, u.reason, pid = ready, reason, u.rec.PID
		if u.readyAt = (time.Time{}); ready {
			u.readyAt = time.Now()
		}
	})
	if ready {
		u.event(Ready, pid, "")
	} else {
		u.event(Unready, pid, reason)
	}
}

// watchHealth notices a unit that lives and does not answer. It is reported and not killed: that helps nobody by itself.
func (u *unit) watchHealth(ctx context.Context) {
	fails, period := 0, u.host.conf.pace.health
	for {
		timer := time.NewTimer(period)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		u.mu.Lock()
		pr, ready := u.rec.Unit.Ready, u.rec.Ready
		u.mu.Unlock()
		err := u.host.conf.Probe.Ask(ctx, pr)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			if fails, period = 0, u.host.conf.pace.health; !ready {
				u.setReady(true, "")
			}
			continue
		}
		if fails++; fails >= healthFails {
			period = u.host.conf.pace.unwell
			u.unwell(ready, pr, err)
		}
	}
}

func (u *unit) unwell(ready bool, pr plan.Probe, err error) {
	reason := fmt.Sprintf("unwell, waiting for %s: %s", pr, err)
	if ready {
		u.setReady(false, reason)
		return
	}
	u.setReason(reason)
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
