// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/durable"
)

// Install makes a free machine what its ticket says: the files first, then the plan, which begins at once. It may be killed and
// called again with the same ticket. Files of another cluster that lie where the ticket's belong are an error, not overwritten.
// before, if not nil, is called between files and plan.
func (a *Agent) Install(ctx context.Context, t plan.Ticket, secrets []plan.TicketFile, before func() error) error {
	files := slices.Concat(t.Files, secrets)
	for _, f := range files {
		if err := f.Check(); err != nil {
			return fmt.Errorf("install the ticket: %w", err)
		}
	}
	if err := a.noteFiles(t.Plan, files); err != nil {
		return err
	}
	for _, f := range files {
		if err := a.give(f); err != nil {
			return fmt.Errorf("install the ticket: %w", err)
		}
	}
	if before != nil {
		if err := before(); err != nil {
			return fmt.Errorf("install the ticket: %w", err)
		}
	}
	_, err := a.Keep(ctx, t.Plan, t.Control)
	return err
}

// noteFiles remembers what a wipe has to remove, before any of it exists.
func (a *Agent) noteFiles(p plan.Plan, files []plan.TicketFile) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.setAside(); err != nil {
		return err
	}
	return a.noteFilesLocked(p, files)
}

func (a *Agent) noteFilesLocked(p plan.Plan, files []plan.TicketFile) error {
	if old := a.kept.Want; old.Version != 0 && (old.Cluster != p.Cluster || old.Node != p.Node) {
		return fmt.Errorf("this machine is node %s of cluster %s already", old.Node, old.Cluster)
	}
	next := a.kept
	for _, f := range files {
		if !slices.Contains(next.Files, f.Path) {
			next.Files = append(slices.Clip(next.Files), f.Path)
		}
	}
	if next.Want.Version == 0 {
		next.Before = rawPlan{Plan: p} // what comes between the files and the plan, as certificates, goes with a wipe, too
	}
	a.cfg.Pass("note files")
	if err := durable.Save(a.cfg.PlanFile, keptSchema, next); err != nil {
		return fmt.Errorf("keep the list of given files: %w", err)
	}
	a.kept = next
	return nil
}

func (a *Agent) give(f plan.TicketFile) error {
	at := a.cfg.Root + f.Path
	have, err := os.ReadFile(at)
	switch {
	case err == nil && bytes.Equal(have, f.Content):
		return os.Chmod(at, os.FileMode(f.Mode))
	case err == nil && strings.HasPrefix(f.Path, "/etc/kubernetes/"):
		return fmt.Errorf("%s is there already and belongs to another cluster: take this machine out of that (slipway node reset), or remove what it left", f.Path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	a.cfg.Pass("give " + f.Path)
	return durable.WriteFile(at, os.FileMode(f.Mode), f.Content)
}

// Wipe stops everything and removes all that the kept plan has made and what was given with it; release is called when that
// is done and before the plan is forgotten, so that a wipe that was broken off is known by its plan (see [Agent.Wiping]).
func (a *Agent) Wipe(ctx context.Context, release func() error) error {
	next, err := a.markWipe()
	if err != nil {
		return fmt.Errorf("mark the wipe: %w", err)
	}
	if err := a.halt(ctx); err != nil {
		return err
	}
	a.cfg.Pass("wipe")
	all := merge(next.Want.Plan, next.Before.Plan)
	if err := a.cfg.Host.Reset(ctx, all, next.Files); err != nil {
		return fmt.Errorf("wipe the machine: %w", err)
	}
	a.cfg.Pass("wiped")
	if err := release(); err != nil {
		return err
	}
	return a.unkeep()
}

// markWipe refuses when nobody knows what is to be removed: a machine whose units run on must not count as free.
func (a *Agent) markWipe() (kept, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lost != nil {
		return kept{}, fmt.Errorf("what was made on this machine stands in its plan: %w", a.lost)
	}
	next := a.kept
	next.Wiping = true
	a.cfg.Pass("mark the wipe")
	if err := durable.Save(a.cfg.PlanFile, keptSchema, next); err != nil {
		return kept{}, err
	}
	a.kept = next
	return next, nil
}

// Wiping tells that a wipe was begun and has not ended.
func (a *Agent) Wiping() bool { return a.current().Wiping }

// Installed tells whether a plan is kept, and for which node.
func (a *Agent) Installed() (node string, ok bool) {
	now := a.current()
	return now.Want.Node, now.Want.Version != 0 && !now.Wiping
}

func (a *Agent) unkeep() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, path := range []string{a.cfg.TraceFile, a.cfg.PlanFile + ".prev", a.cfg.PlanFile} { // the plan last: what is left says that it was wiped
		a.cfg.Pass("forget " + filepath.Base(path))
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("forget the plan: %w", err)
		}
	}
	if err := durable.SyncDir(filepath.Dir(a.cfg.PlanFile)); err != nil {
		return err
	}
	a.kept, a.lost = kept{generation: a.kept.generation + 1}, nil
	a.board.Reset()
	return nil
}

// halt ends the loop and the control role, if they run.
func (a *Agent) halt(ctx context.Context) error {
	halted := make(chan struct{})
	select {
	case a.stop <- halted:
	case <-a.over: // with all that it ran; whoever undoes something meanwhile must not wait for it
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-halted:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// AddFile writes one more file that belongs to the node and goes with it. Once a wipe has begun there is no node any more: what came
// late would stay for the next one, and a permit or a vote must not.
func (a *Agent) AddFile(f plan.TicketFile) error {
	f.Path = strings.TrimPrefix(f.Path, a.cfg.Root)
	if err := f.Check(); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.kept.Want.Version == 0 || a.kept.Wiping {
		return fmt.Errorf("write %s: this machine is no node, or is being reset", f.Path)
	}
	if err := a.noteFilesLocked(a.kept.Want.Plan, []plan.TicketFile{f}); err != nil {
		return err
	}
	return a.give(f)
}

// DataGuard is what a process of the kept plan must not begin anew without; false if the plan has no such process.
func (a *Agent) DataGuard(name string) (plan.DataGuard, bool) {
	e, ok := a.current().Want.Process(name)
	return plan.DataGuardOf(e.Item), ok
}

// Process is the reference of a component in the kept plan, whichever form it has there.
func (a *Agent) Process(name string) string {
	if e, ok := a.current().Want.Process(name); ok {
		return e.Ref.String()
	}
	return plan.RefOf(plan.Unit{Name: name}).String()
}

// Running tells whether a unit has a process.
func (a *Agent) Running(name string) bool {
	return slices.ContainsFunc(a.cfg.Host.Units(), func(u UnitStatus) bool { return u.Name == name && u.PID > 0 })
}

// Discard takes away the data of a unit that has never counted, and ends its process, so that it begins anew. Data that the unit's
// mark speaks of is refused.
func (a *Agent) Discard(name string) error {
	h, ok := a.DataGuard(name)
	if !ok || h.Data == "" {
		return fmt.Errorf("discard the data of %s: the plan does not say where it is", name)
	}
	if _, err := os.Stat(a.cfg.Root + h.Mark); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("discard the data of %s: %s says that it counts (%w)", name, h.Mark, err)
	}
	data := a.cfg.Root + h.Data
	aside := data + ".discarded"
	a.cfg.Pass("discard")
	if err := os.RemoveAll(aside); err != nil {
		return err
	}
	if err := os.Rename(data, aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("discard the data of %s: %w", name, err)
	}
	a.cfg.Pass("set aside")
	for _, s := range a.cfg.Host.Units() {
		if s.Name == name && s.PID > 0 {
			if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return err
			}
		}
	}
	return os.RemoveAll(aside)
}
