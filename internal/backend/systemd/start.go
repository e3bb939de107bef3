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

// run makes a unit run as it should: started if it does not, exchanged if it runs otherwise. What systemd only has to know
// better, such as how it is stopped, takes no restart.
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
	if state.Existence == plan.Present && u.runsAs(spec, inputs) {
		return u.settle(ctx, e, spec)
	}
	if err := u.stopLocked(ctx); err != nil {
		return err
	}
	if err := u.begin(spec, inputs); err != nil {
		return err
	}
	if err := u.settle(ctx, e, spec); err != nil {
		return err
	}
	return u.start(ctx)
}

// runsAs: the process that runs is the wanted one, or nothing runs and the next start will lead to it.
func (u *unit) runsAs(spec plan.Unit, inputs []units.Input) bool {
	b, noted := u.lastStart()
	u.mu.Lock()
	defer u.mu.Unlock()
	return noted && u.life != "" && b.Invocation == u.life && !u.stopping && !u.state.isStopping() &&
		u.rec.begun(b).Differs(spec, inputs) == ""
}

// begin writes down what is going to be started, and forgets how often it has died.
func (u *unit) begin(spec plan.Unit, inputs []units.Input) error {
	if len(spec.Args) == 0 || !strings.HasPrefix(spec.Args[0], "/") {
		return fmt.Errorf("start %s: the first argument must be an absolute path", u.name)
	}
	if err := removeRecord(begunPath(u.host.conf.StateDir, u.name)); err != nil {
		return err
	}
	log, err := os.OpenFile(u.host.logs.Path(u.name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640) // systemd would let all read it
	if err != nil {
		return err
	}
	if err := log.Close(); err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.rec = record{Unit: spec, Inputs: inputs, Restarts: u.rec.Restarts, LastExit: u.rec.LastExit}
	u.reason, u.stopping = "being started", false
	return u.saveLocked()
}

// settle makes systemd know the unit as it is wanted. A unit that systemd has not read yet is read when it is started; only one
// that it knows otherwise takes a reload.
func (u *unit) settle(ctx context.Context, e plan.Entry, spec plan.Unit) error {
	text, path := u.text(e, spec), filepath.Join(UnitDir, u.service)
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

// start returns when there is a process, or when systemd has tried and is going to try again.
func (u *unit) start(ctx context.Context) error {
	if err := u.host.bus.forgive(ctx, u.service); err != nil {
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
		s, changed := u.state, u.changed
		u.mu.Unlock()
		if s.mainPID != 0 && !s.isStopping() || s.isBetween() {
			return nil
		}
		select {
		case r := <-result:
			if result = nil; r != "done" && r != "failed" { // failed: it died at once, which is no other than dying later
				return fmt.Errorf("start %s: systemd says %s (%s): see systemctl status %s", u.name, r, s.result, u.service)
			}
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-u.ctx.Done():
			return errGone
		}
		if result == nil {
			if err := u.refresh(ctx); err != nil {
				return err
			}
			return nil
		}
	}
}

// stop ends the unit's process. When ctx ends first systemd has been told, and goes on.
func (u *unit) stop(ctx context.Context) error {
	u.ops.Lock()
	defer u.ops.Unlock()
	return u.stopLocked(ctx)
}

func (u *unit) stopLocked(ctx context.Context) error {
	if err := u.refresh(ctx); err != nil {
		return err
	}
	u.mu.Lock()
	pid, gone := u.state.mainPID, u.state.isGone()
	if !gone {
		u.stopping, u.rec.Ready, u.reason = true, false, "it is being stopped"
		u.tellLocked()
	}
	u.mu.Unlock()
	if gone {
		return nil
	}
	result, err := u.host.bus.stop(ctx, u.service)
	if err != nil {
		return err
	}
	if err := u.ended(ctx, result); err != nil {
		return fmt.Errorf("stop %s: %w", u.name, err)
	}
	u.event(units.Stopped, pid, "")
	return nil
}

// ended waits for the end of a stop. A broken connection loses results, so the state counts too.
func (u *unit) ended(ctx context.Context, result <-chan string) error {
	for {
		u.mu.Lock()
		changed := u.changed
		u.mu.Unlock()
		select {
		case <-result:
			result = nil
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-u.ctx.Done():
			return errGone
		}
		if err := u.refresh(ctx); err != nil {
			return err
		}
		u.mu.Lock()
		gone := u.state.isGone()
		if gone {
			u.stopping, u.reason = false, "it was stopped"
		}
		u.mu.Unlock()
		if gone {
			return nil
		}
	}
}

// text is the unit's file.
func (u *unit) text(e plan.Entry, spec plan.Unit) []byte {
	var after []string
	for _, name := range render.After(e, u.host.seen.Find) {
		after = append(after, render.ServiceName(u.host.conf.Prefix, name))
	}
	o := render.Options{After: after, LogDir: u.host.conf.LogDir, Pause: "100ms"}
	if !spec.Oneshot || spec.DataGuard.Mark != "" {
		o.Before = []string{u.host.conf.Exe, "unit-begin", "-state", u.host.conf.StateDir, "-unit", u.name}
	}
	return render.Service(spec, o)
}

func (u *unit) fileIs(text []byte) bool {
	have, err := os.ReadFile(filepath.Join(UnitDir, u.service))
	return err == nil && string(have) == string(text)
}
