// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"context"
	"fmt"
	"time"
)

func (h *Host) stop(ctx context.Context, u *unit) error {
	h.mu.Lock()
	u.endTimersLocked()
	was := u.phase
	patient := u.running && u.does.IgnoreTerm
	if u.running {
		u.signals, u.phase, u.ready = append(u.signals, "terminated"), stopping, false
	}
	h.mu.Unlock()
	if patient {
		if err := rest(ctx, max(u.spec.StopTimeout, 0), defaultStopTimeout); err != nil {
			return err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	u.running, u.ready = false, false
	if u.spec.KillChildren {
		u.children = 0
	}
	if was != never {
		u.phase = stopped
	}
	u.done = false
	return nil
}

func (h *Host) runToEnd(ctx context.Context, u *unit) error {
	if !u.does.Exit { // it would run for ever
		<-ctx.Done()
		h.mu.Lock()
		defer h.mu.Unlock()
		u.signals, u.running, u.phase = append(u.signals, "terminated"), false, stopped
		return ctx.Err()
	}
	if err := rest(ctx, u.does.ReadyAfter, 0); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	u.running, u.done = false, u.does.Code == 0
	if u.does.Code != 0 {
		return fmt.Errorf("exited with %d: %s", u.does.Code, u.does.Say)
	}
	return nil
}

func rest(ctx context.Context, d, otherwise time.Duration) error {
	if d == 0 {
		d = otherwise
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
