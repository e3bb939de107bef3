// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/core/plan"
)

const (
	errorLines     = 5
	interruptGrace = 400 * time.Millisecond // between SIGTERM and SIGKILL of an interrupted oneshot
)

// observeOneshot runs the probe first: if the work is done, it does not matter who did it, or in which
// boot.
func (h *Host) observeOneshot(ctx context.Context, spec plan.Unit, u *unit) (plan.State, error) {
	var r record
	alive := false
	if u != nil {
		u.mu.Lock()
		r, alive = u.rec, u.proc != nil && !u.proc.isDone()
		u.mu.Unlock()
	}
	if alive {
		return plan.State{Existence: plan.Present, Matches: true, Detail: "it is running"}, nil
	}
	ran := r.Phase == exited && r.LastExit != nil && r.LastExit.Code == 0
	if spec.Ready.Kind == plan.ProbeNone && !ran {
		return plan.State{Existence: plan.Absent, Detail: "it has not run yet"}, nil
	}
	if err := h.conf.Probe.Ask(ctx, spec.Ready); err != nil {
		if ctx.Err() != nil {
			return plan.State{}, ctx.Err()
		}
		return plan.State{Existence: plan.Absent, Detail: "its work is not done: " + err.Error()}, nil
	}
	if ran {
		inputs, err := h.fingerprints(spec)
		if err != nil {
			return plan.State{}, fmt.Errorf("observe %s: %w", spec.Name, err)
		}
		if why := r.startInfo().Differs(spec, inputs); why != "" {
			return plan.State{Existence: plan.Present, Detail: why}, nil
		}
	}
	return plan.State{Existence: plan.Present, Matches: true, Ready: true}, nil
}

// runOnce runs a oneshot to completion. If it is still running for an earlier agent, that run is awaited
// first.
func (u *unit) runOnce(ctx context.Context, spec plan.Unit) error {
	u.ops.Lock()
	defer u.ops.Unlock()
	if p := u.current(); p != nil && !p.isDone() {
		if err := u.waitFor(ctx, p); err != nil {
			return err
		}
	}
	u.mu.Lock()
	u.rec = record{Unit: spec, Phase: stopped}
	u.mu.Unlock()
	if err := u.start(); err != nil {
		return err
	}
	return u.waitFor(ctx, u.current())
}

// waitFor waits for the process and returns an error unless it exits with 0. If ctx ends first, it ends
// the process.
func (u *unit) waitFor(ctx context.Context, p *process) error {
	select {
	case <-p.done:
	case <-u.host.ctx.Done():
		return errClosed
	case <-ctx.Done():
		return errors.Join(ctx.Err(), u.interrupt(p))
	}
	return u.finished(p)
}

// finished records the end of a oneshot, and returns an error with the last log lines unless it exited
// with 0.
func (u *unit) finished(p *process) error {
	p.close()
	u.event(units.Done, p.pid, p.exit.String())
	if err := u.update(func() {
		u.rec.Phase, u.rec.PID, u.rec.Start, u.rec.LastExit, u.proc = exited, 0, 0, &p.exit, nil
	}); err != nil {
		return err
	}
	if p.exit.Code == 0 {
		return nil
	}
	lines, err := u.host.Tail(u.name, errorLines)
	return errors.Join(fmt.Errorf("%s %s: %s", u.name, p.exit, strings.Join(lines, " | ")), err)
}

// interrupt ends a oneshot within a second.
func (u *unit) interrupt(p *process) error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	timer := time.NewTimer(interruptGrace)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		if err := p.signal(syscall.SIGKILL); err != nil {
			return err
		}
		<-p.done
	}
	u.mu.Lock()
	killChildren := u.rec.Unit.KillChildren
	u.mu.Unlock()
	var err error
	if killChildren {
		ctx, cancel := context.WithTimeout(u.host.ctx, interruptGrace)
		defer cancel()
		err = u.host.cgroups.kill(ctx, u.name)
	}
	return errors.Join(u.finished(p), err)
}

// awaitEnd waits for a oneshot that an earlier agent started.
func (u *unit) awaitEnd(ctx context.Context, e plan.Entry, waiting func(reason string)) error {
	if p := u.current(); p != nil {
		waiting("it is running")
		select {
		case <-p.done:
		case <-u.host.ctx.Done():
			return errClosed
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := u.finished(p); err != nil && !p.exit.Lost {
			return err
		}
	}
	s, err := u.host.Observe(ctx, e)
	if err != nil {
		return err
	}
	if !s.Ready {
		return fmt.Errorf("%s: %s", e.Ref, s.Detail)
	}
	return nil
}
