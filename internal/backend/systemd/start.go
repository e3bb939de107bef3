// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/durable"
	render "github.com/slipway-project/slipway/internal/render/systemd"
)

// run starts the unit, or restarts it if it differs from spec. Settings that only systemd uses, such as
// the stop timeout, take effect without a restart.
func (u *unit) run(ctx context.Context, e plan.Entry, spec plan.Unit) error {
	u.ops.Lock()
	defer u.ops.Unlock()
	inputs, err := u.host.fingerprints(spec)
	if err != nil {
		return fmt.Errorf("start %s: %w", u.name, err)
	}
	if err := u.refresh(ctx); err != nil {
		return err
	}
	state := u.observe(e, spec, inputs)
	if state.Existence == plan.Present && state.Matches {
		return nil
	}
	if state.Existence == plan.Present && u.isRunningAs(spec, inputs) {
		return u.syncUnitFile(ctx, e, spec)
	}
	if err := u.stopLocked(ctx); err != nil {
		return err
	}
	if err := u.writeRecord(spec, inputs); err != nil {
		return err
	}
	if err := u.syncUnitFile(ctx, e, spec); err != nil {
		return err
	}
	return u.start(ctx)
}

// isRunningAs reports whether the running process was started as spec says.
func (u *unit) isRunningAs(spec plan.Unit, inputs []units.Input) bool {
	b, noted := u.lastStart()
	u.mu.Lock()
	defer u.mu.Unlock()
	return noted && u.invocation != "" && b.Invocation == u.invocation && !u.stopping && !u.state.isStopping() &&
		u.rec.startInfo(b).Differs(spec, inputs) == ""
}

// writeRecord records what is about to be started, and resets the crash count.
func (u *unit) writeRecord(spec plan.Unit, inputs []units.Input) error {
	if len(spec.Args) == 0 || !strings.HasPrefix(spec.Args[0], "/") {
		return fmt.Errorf("start %s: the first argument must be an absolute path", u.name)
	}
	if err := removeRecord(startNotePath(u.host.conf.StateDir, u.name)); err != nil {
		return err
	}
	log, err := os.OpenFile(u.host.logs.Path(u.name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640) // systemd would make it world-readable
	if err != nil {
		return err
	}
	if err := log.Close(); err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.rec = record{Unit: spec, Inputs: inputs, Restarts: u.rec.Restarts, LastExit: u.rec.LastExit}
	u.reason, u.stopping = "starting", false
	return u.saveLocked()
}

// syncUnitFile writes the unit file and makes systemd use it. A unit that is not loaded yet is loaded at
// its start; only one that systemd has loaded in another form needs a reload.
func (u *unit) syncUnitFile(ctx context.Context, e plan.Entry, spec plan.Unit) error {
	text, path := u.text(e, spec), filepath.Join(unitDir, u.service)
	have, err := os.ReadFile(path)
	known := err == nil
	if !known || string(have) != string(text) {
		if err := durable.WriteFile(path, 0o644, text); err != nil {
			return fmt.Errorf("write unit file: %w", err)
		}
	}
	if err := u.refresh(ctx); err != nil {
		return err
	}
	u.mu.Lock()
	stale := u.state.stale || u.state.load != "loaded" || known && string(have) != string(text)
	u.rec.Unit = spec
	err = u.saveLocked()
	u.mu.Unlock()
	if err != nil || !stale {
		return err
	}
	if err := u.host.bus.reload(ctx); err != nil {
		return err
	}
	return u.refresh(ctx)
}

// start returns when there is a process, or when the start has failed and systemd will retry it.
func (u *unit) start(ctx context.Context) error {
	if err := u.host.bus.resetFailed(ctx, u.service); err != nil {
		return err
	}
	result, err := u.host.bus.start(ctx, u.service)
	if err != nil {
		return err
	}
	for {
		if err := u.refresh(ctx); err != nil {
			return err
		}
		u.mu.Lock()
		s, changed := u.state, u.changed.Wait()
		u.mu.Unlock()
		if s.mainPID != 0 && !s.isStopping() || s.isRestarting() {
			return nil
		}
		select {
		case r := <-result:
			if result = nil; r != "done" && r != "failed" { // failed: it exited at once, which is handled like a later exit
				return fmt.Errorf("start %s: job result %s (%s), see systemctl status %s", u.name, r, s.result, u.service)
			}
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-u.ctx.Done():
			return errClosed
		}
		if result == nil {
			if err := u.refresh(ctx); err != nil {
				return err
			}
			return nil
		}
	}
}

// stop stops the unit. If ctx ends first, systemd completes the stop.
func (u *unit) stop(ctx context.Context) error {
	u.ops.Lock()
	defer u.ops.Unlock()
	return u.stopLocked(ctx)
}

// stopLocked is stop for callers that hold u.ops.
func (u *unit) stopLocked(ctx context.Context) error {
	if err := u.refresh(ctx); err != nil {
		return err
	}
	u.mu.Lock()
	pid, gone := u.state.mainPID, u.state.isGone()
	if !gone {
		u.stopping, u.rec.Ready, u.reason = true, false, "stopping"
		u.notifyLocked()
	}
	u.mu.Unlock()
	if gone {
		return nil
	}
	result, err := u.host.bus.stop(ctx, u.service)
	if err != nil {
		return err
	}
	if err := u.awaitStopped(ctx, result); err != nil {
		return fmt.Errorf("stop %s: %w", u.name, err)
	}
	u.event(units.Stopped, pid, "")
	return nil
}

// awaitStopped waits until the unit is stopped. It also checks the state, because a broken connection
// loses the job result.
func (u *unit) awaitStopped(ctx context.Context, result <-chan string) error {
	for {
		u.mu.Lock()
		changed := u.changed.Wait()
		u.mu.Unlock()
		select {
		case <-result:
			result = nil
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-u.ctx.Done():
			return errClosed
		}
		if err := u.refresh(ctx); err != nil {
			return err
		}
		u.mu.Lock()
		gone := u.state.isGone()
		if gone {
			u.stopping, u.reason = false, "stopped"
		}
		u.mu.Unlock()
		if gone {
			return nil
		}
	}
}

// text returns the content of the unit file.
func (u *unit) text(e plan.Entry, spec plan.Unit) []byte {
	var after []string
	for _, name := range render.After(e, u.host.entries.Find) {
		after = append(after, render.ServiceName(u.host.conf.Prefix, name))
	}
	o := render.Options{After: after, LogDir: u.host.conf.LogDir, Pause: "100ms"}
	if !spec.Oneshot || spec.DataGuard.Mark != "" {
		o.Before = []string{u.host.conf.Exe, "unit-pre-start", "-state", u.host.conf.StateDir, "-unit", u.name}
	}
	return render.Service(spec, o)
}

func (u *unit) unitFileIs(text []byte) bool {
	have, err := os.ReadFile(filepath.Join(unitDir, u.service))
	return err == nil && string(have) == string(text)
}
