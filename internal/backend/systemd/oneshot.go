// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"

	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/core/plan"
)

const (
	errorLines     = 5
	interruptGrace = 400 * time.Millisecond // between SIGTERM and SIGKILL of an interrupted oneshot
)

// observeOneshot runs the probe first: if the work is done, it does not matter who did it, or in which
// boot.
func (h *Host) observeOneshot(ctx context.Context, spec plan.Unit) (plan.State, error) {
	u := h.unitOrNew(spec.Name)
	if err := u.refresh(ctx); err != nil {
		return plan.State{}, err
	}
	u.mu.Lock()
	rec, s := u.rec, u.state
	u.mu.Unlock()
	if !s.isGone() {
		return plan.State{Existence: plan.Present, Matches: true, Detail: "it is running"}, nil
	}
	if spec.Ready.Kind == plan.ProbeNone && !rec.Ran {
		return plan.State{Existence: plan.Absent, Detail: "it has not run yet"}, nil
	}
	if err := h.conf.Probe.Ask(ctx, spec.Ready); err != nil {
		if ctx.Err() != nil {
			return plan.State{}, ctx.Err()
		}
		return plan.State{Existence: plan.Absent, Detail: "its work is not done: " + err.Error()}, nil
	}
	if rec.Ran {
		inputs, err := h.fingerprints(spec)
		if err != nil {
			return plan.State{}, fmt.Errorf("observe %s: %w", spec.Name, err)
		}
		if why := (units.StartInfo{Unit: rec.Unit, Inputs: rec.Inputs}).Differs(spec, inputs); why != "" {
			return plan.State{Existence: plan.Present, Detail: why}, nil
		}
	}
	return plan.State{Existence: plan.Present, Matches: true, Ready: true}, nil
}

// runOnce runs a oneshot to completion. If it is still running for an earlier agent, that run is awaited
// first.
func (u *unit) runOnce(ctx context.Context, e plan.Entry, spec plan.Unit) error {
	u.ops.Lock()
	defer u.ops.Unlock()
	if err := u.waitForEnd(ctx); err != nil {
		return err
	}
	inputs, err := u.host.fingerprints(spec)
	if err != nil {
		return fmt.Errorf("start %s: %w", u.name, err)
	}
	u.mu.Lock()
	ranBefore := u.rec.Ran
	u.mu.Unlock()
	if err := errors.Join(u.writeRecord(spec, inputs), u.syncUnitFile(ctx, e, spec), u.host.bus.resetFailed(ctx, u.service)); err != nil {
		return err
	}
	u.mu.Lock()
	before := u.state.invocation
	u.mu.Unlock()
	result, broken, err := u.host.bus.startOn(ctx, u.service)
	switch {
	case err != nil && ctx.Err() != nil: // systemd may have received the request
		return errors.Join(err, u.interrupt())
	case err != nil:
		return err
	}
	select {
	case r := <-result:
		return u.finished(ctx, r)
	case <-broken:
		select {
		case r := <-result: // it arrived just before
			return u.finished(ctx, r)
		default:
			return u.inferResult(ctx, spec, before, ranBefore)
		}
	case <-ctx.Done():
		return errors.Join(ctx.Err(), u.interrupt())
	case <-u.ctx.Done():
		return errClosed
	}
}

// inferResult determines the result of a start whose job result was lost with the connection. systemd
// keeps failed units, but soon forgets successful ones; for those the probe decides, unless the work had
// been done before with other inputs.
func (u *unit) inferResult(ctx context.Context, spec plan.Unit, before string, ranBefore bool) error {
	s, err := u.outcome(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return errors.Join(err, u.interrupt())
	case err != nil:
		return err
	case s.invocation != "" && s.invocation != before && s.active != "failed" && s.result == "success":
		return u.finished(ctx, "done")
	case s.invocation != "" && s.invocation != before:
		return u.finished(ctx, "failed")
	case spec.Ready.Kind == plan.ProbeNone || ranBefore:
		return fmt.Errorf("%s: the connection to systemd broke, result unknown", u.name)
	}
	if err := u.host.conf.Probe.Ask(ctx, spec.Ready); err != nil {
		return fmt.Errorf("%s: the connection to systemd broke, work not done: %w", u.name, err)
	}
	return u.finished(ctx, "done")
}

// outcome waits until the unit does not run and has no queued job, across broken connections.
func (u *unit) outcome(ctx context.Context) (state, error) {
	for {
		u.mu.Lock()
		changed := u.changed.Wait() // taken before the refresh, so that a reconnect during it is not missed
		u.mu.Unlock()
		if err := u.refresh(ctx); err == nil {
			u.mu.Lock()
			s := u.state
			changed = u.changed.Wait() // the refresh has closed the previous channel
			u.mu.Unlock()
			if s.isGone() && !s.job {
				return s, nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return state{}, ctx.Err()
		case <-u.ctx.Done():
			return state{}, errClosed
		}
	}
}

// waitForEnd waits until the unit is not running.
func (u *unit) waitForEnd(ctx context.Context) error {
	for {
		if err := u.refresh(ctx); err != nil {
			return err
		}
		u.mu.Lock()
		gone, changed := u.state.isGone(), u.changed.Wait()
		u.mu.Unlock()
		if gone {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-u.ctx.Done():
			return errClosed
		}
	}
}

// finished records the result of a oneshot, and returns an error with the last log lines unless it
// succeeded.
func (u *unit) finished(ctx context.Context, result string) error {
	if result == "done" {
		u.event(units.Done, 0, "exited with 0")
		u.mu.Lock()
		defer u.mu.Unlock()
		u.rec.Ran, u.rec.LastExit = true, &units.Exit{At: time.Now()}
		return u.saveLocked()
	}
	if err := u.refresh(ctx); err != nil {
		return err
	}
	u.mu.Lock()
	exit := u.state.exit()
	u.rec.LastExit = &exit
	err := u.saveLocked()
	u.mu.Unlock()
	u.event(units.Done, 0, exit.String())
	lines, tailErr := u.host.logs.Tail(u.name, errorLines)
	return errors.Join(fmt.Errorf("%s %s: %s", u.name, exit, strings.Join(lines, " | ")), tailErr, err)
}

// interrupt ends a oneshot within a second.
func (u *unit) interrupt() error {
	ctx, cancel := context.WithTimeout(u.ctx, 2*time.Second)
	defer cancel()
	result, err := u.host.bus.stop(ctx, u.service)
	if err != nil {
		return err
	}
	timer := time.NewTimer(interruptGrace)
	defer timer.Stop()
	select {
	case <-result:
		return nil
	case <-timer.C:
	}
	if err := u.host.bus.kill(ctx, u.service, sd.Main, syscall.SIGKILL); err != nil {
		return err
	}
	select {
	case <-result:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// awaitEnd waits for a oneshot that an earlier agent started.
func (u *unit) awaitEnd(ctx context.Context, e plan.Entry, waiting func(reason string)) error {
	if err := u.refresh(ctx); err != nil {
		return err
	}
	u.mu.Lock()
	gone := u.state.isGone()
	u.mu.Unlock()
	if !gone {
		waiting("it is running")
		if err := u.waitForEnd(ctx); err != nil {
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
