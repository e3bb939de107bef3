// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// Observe tells the entry's state, see reconcile.Host.
func (h *Host) Observe(ctx context.Context, e plan.Entry) (plan.State, error) {
	h.seen.See(e)
	spec, ok := e.Item.(plan.Unit)
	if !ok {
		return h.conf.Files.Observe(ctx, e)
	}
	if err := errors.Join(ctx.Err(), checkName(e)); err != nil {
		return plan.State{}, err
	}
	if spec.Oneshot {
		return h.observeOneshot(ctx, spec)
	}
	u := h.unitOrNew(spec.Name)
	if err := u.refresh(ctx); err != nil {
		return plan.State{}, err
	}
	if u.isUnknown() {
		return plan.State{Existence: plan.Absent, Detail: "it has never been started"}, nil
	}
	inputs, err := h.fingerprints(spec)
	if err != nil {
		return plan.State{}, fmt.Errorf("observe %s: %w", e.Ref, err)
	}
	return u.observe(e, spec, inputs), nil
}

// Do carries out one step, see reconcile.Host.
func (h *Host) Do(ctx context.Context, s plan.Step, e plan.Entry) error {
	h.seen.See(e)
	spec, ok := e.Item.(plan.Unit)
	if !ok {
		return h.conf.Files.Do(ctx, s, e)
	}
	if err := errors.Join(ctx.Err(), checkName(e)); err != nil {
		return err
	}
	u := h.unitOrNew(spec.Name)
	switch {
	case s.Verb == plan.Remove:
		return u.remove(ctx)
	case spec.Oneshot:
		return u.runOnce(ctx, e, spec)
	}
	return u.run(ctx, e, spec)
}

// Await waits until the unit is ready. A unit that dies meanwhile is started again, and waiting goes on.
func (h *Host) Await(ctx context.Context, e plan.Entry, waiting func(reason string)) error {
	h.seen.See(e)
	spec, ok := e.Item.(plan.Unit)
	if !ok {
		return h.conf.Files.Await(ctx, e, waiting)
	}
	u := h.unitOrNew(spec.Name)
	if spec.Oneshot {
		return u.awaitEnd(ctx, e, waiting)
	}
	return u.await(ctx, waiting)
}

// checkName refuses what systemd would not take for the name of a service, or what would lead out of a folder.
func checkName(e plan.Entry) error {
	name := e.Item.Key()
	for _, c := range name {
		if c > 0x7e || !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:_.-@", c) {
			return fmt.Errorf("%s: a unit cannot have this name: %q is not allowed in the name of a service", e.Ref, c)
		}
	}
	if name == "" || name[0] == '.' || len(name) > 200 {
		return fmt.Errorf("%s: a unit cannot have this name", e.Ref)
	}
	return nil
}

func (h *Host) fingerprints(spec plan.Unit) ([]units.Input, error) {
	return h.seen.Fingerprints(spec, h.conf.Files.Fingerprint)
}

func (u *unit) isUnknown() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.rec.Unit.Name == "" && u.state.isGone()
}

// remove stops the unit and takes away all that is known of it. systemd forgets what has no file and does not run.
func (u *unit) remove(ctx context.Context) error {
	u.ops.Lock()
	defer u.ops.Unlock()
	if err := u.stopLocked(ctx); err != nil {
		return err
	}
	dir := u.host.conf.StateDir
	err := errors.Join(
		removeIfThere(filepath.Join(UnitDir, u.service)), u.host.bus.forgive(ctx, u.service),
		removeRecord(recordPath(dir, u.name)), removeRecord(begunPath(dir, u.name)),
	)
	if err != nil {
		return fmt.Errorf("remove %s: %w", u.name, err)
	}
	u.host.forget(u)
	return nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Logs is the path of a unit's log; older ones have .1, .2, .3 appended.
func (h *Host) Logs(unit string) string { return h.logs.Path(unit) }

// Status tells of every unit, by name.
func (h *Host) Status() []units.Status {
	var all []units.Status
	for _, u := range h.units.All() {
		u.mu.Lock()
		s := units.Status{
			Name: u.name, PID: u.state.mainPID, Since: u.state.since, Ready: u.rec.Ready, Restarts: u.rec.Restarts,
			LastExit: u.rec.LastExit, Oneshot: u.rec.Unit.Oneshot,
		}
		if !s.Ready {
			s.Waiting = u.reason
		}
		known := u.rec.Unit.Name != ""
		u.mu.Unlock()
		if known {
			all = append(all, s)
		}
	}
	return all
}
