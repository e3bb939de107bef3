// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"fmt"
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
	if err := ctx.Err(); err != nil {
		return plan.State{}, err
	}
	u := h.units.Get(spec.Name)
	if spec.Oneshot {
		return h.observeOneshot(ctx, spec, u)
	}
	if u == nil {
		return plan.State{Existence: plan.Absent, Detail: "it has never been started"}, nil
	}
	inputs, err := h.fingerprints(spec)
	if err != nil {
		return plan.State{}, fmt.Errorf("observe %s: %w", e.Ref, err)
	}
	return u.observe(spec, inputs), nil
}

// Do carries out one step, see reconcile.Host.
func (h *Host) Do(ctx context.Context, s plan.Step, e plan.Entry) error {
	h.seen.See(e)
	spec, ok := e.Item.(plan.Unit)
	if !ok {
		return h.conf.Files.Do(ctx, s, e)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if spec.Name == "" || strings.ContainsAny(spec.Name, "/:\x00") || spec.Name[0] == '.' { // it becomes a part of paths
		return fmt.Errorf("%s: a unit cannot have this name", e.Ref)
	}
	if s.Verb == plan.Remove {
		return h.remove(ctx, spec.Name)
	}
	u := h.unitOrNew(spec.Name)
	if spec.Oneshot {
		return u.runOnce(ctx, spec)
	}
	return u.run(ctx, spec, s.Verb == plan.Replace)
}

// Await waits until the unit is ready. A unit that dies meanwhile is started again, and waiting goes on.
func (h *Host) Await(ctx context.Context, e plan.Entry, waiting func(reason string)) error {
	h.seen.See(e)
	spec, ok := e.Item.(plan.Unit)
	if !ok {
		return h.conf.Files.Await(ctx, e, waiting)
	}
	u := h.units.Get(spec.Name)
	if u == nil {
		if s, err := h.Observe(ctx, e); err != nil || s.Ready { // a oneshot whose work was done before this boot
			return err
		}
		return fmt.Errorf("%s has never been started", e.Ref)
	}
	if spec.Oneshot {
		return u.awaitEnd(ctx, e, waiting)
	}
	return u.await(ctx, waiting)
}

func (h *Host) fingerprints(spec plan.Unit) ([]units.Input, error) {
	return h.seen.Fingerprints(spec, h.conf.Files.Fingerprint)
}

func (h *Host) remove(ctx context.Context, name string) error {
	u := h.units.Get(name)
	if u == nil {
		return nil
	}
	if err := u.stop(ctx); err != nil {
		return err
	}
	h.units.Forget(name, u)
	h.cgroups.remove(name)
	for _, path := range []string{h.recordPath(name), h.recordPath(name) + ".prev", h.notifyPath(name)} {
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}

func (h *Host) recordPath(name string) string { return filepath.Join(h.conf.StateDir, name+".state") }

func (h *Host) notifyPath(name string) string { return filepath.Join(h.conf.StateDir, name+".notify") }
