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

// Install writes the ticket's files and starts its plan. After a crash it may be called again with the same ticket. It does not
// overwrite files of another cluster but returns an error. before, if not nil, is called between the files and the plan.
func (a *Agent) Install(ctx context.Context, t plan.Ticket, secrets []plan.TicketFile, before func() error) error {
	files := slices.Concat(t.Files, secrets)
	for _, f := range files {
		if err := f.Check(); err != nil {
			return fmt.Errorf("install the ticket: %w", err)
		}
	}
	a.mu.Lock()
	err := a.renameDamagedLocked()
	if err == nil {
		err = a.recordFilesLocked(t.Plan, files)
	}
	a.mu.Unlock()
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := a.writeFile(f); err != nil {
			return fmt.Errorf("install the ticket: %w", err)
		}
	}
	if before != nil {
		if err := before(); err != nil {
			return fmt.Errorf("install the ticket: %w", err)
		}
	}
	_, err = a.Apply(ctx, t.Plan, t.Control)
	return err
}

// recordFilesLocked stores which files a wipe must remove, before any of them exists.
func (a *Agent) recordFilesLocked(p plan.Plan, files []plan.TicketFile) error {
	if old := a.stored.Want; old.Version != 0 && (old.Cluster != p.Cluster || old.Node != p.Node) {
		return fmt.Errorf("this machine is already node %s of cluster %s", old.Node, old.Cluster)
	}
	next := a.stored
	for _, f := range files {
		if !slices.Contains(next.Files, f.Path) {
			next.Files = append(slices.Clip(next.Files), f.Path)
		}
	}
	if next.Want.Version == 0 {
		next.Before = rawPlan{Plan: p} // so that a wipe also removes what is created before the plan, such as certificates
	}
	a.cfg.Pass("note files")
	if err := durable.Save(a.cfg.PlanFile, storedSchema, next); err != nil {
		return fmt.Errorf("store the list of files: %w", err)
	}
	a.stored = next
	return nil
}

// writeFile writes a ticket file. It refuses to replace a different file of a Kubernetes node.
func (a *Agent) writeFile(f plan.TicketFile) error {
	at := a.cfg.Root + f.Path
	have, err := os.ReadFile(at)
	switch {
	case err == nil && bytes.Equal(have, f.Content):
		return os.Chmod(at, os.FileMode(f.Mode))
	case err == nil && strings.HasPrefix(f.Path, "/etc/kubernetes/"):
		return fmt.Errorf("%s exists and belongs to another cluster: reset this machine (slipway node reset), or remove the file", f.Path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	a.cfg.Pass("give " + f.Path)
	return durable.WriteFile(at, os.FileMode(f.Mode), f.Content)
}

// Wipe stops all processes, and removes everything that the stored plan has created and the files of its ticket. Then it calls
// release, and deletes the plan last: the plan marks an interrupted wipe (see [Agent.Wiping]).
func (a *Agent) Wipe(ctx context.Context, release func() error) error {
	next, err := a.markWipe()
	if err != nil {
		return fmt.Errorf("mark the wipe: %w", err)
	}
	if err := a.stopLoop(ctx); err != nil {
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
	return a.deletePlan()
}

// markWipe records that the wipe has begun. It returns an error if the plan is unreadable: without it, units would keep running on a
// machine that counts as free.
func (a *Agent) markWipe() (stored, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lost != nil {
		return stored{}, fmt.Errorf("cannot determine what to remove without the plan: %w", a.lost)
	}
	next := a.stored
	next.Wiping = true
	a.cfg.Pass("mark the wipe")
	if err := durable.Save(a.cfg.PlanFile, storedSchema, next); err != nil {
		return stored{}, err
	}
	a.stored = next
	return next, nil
}

// Wiping reports whether a wipe has begun and not ended.
func (a *Agent) Wiping() bool { return a.current().Wiping }

// Installed reports whether there is a plan, and for which node.
func (a *Agent) Installed() (node string, ok bool) {
	now := a.current()
	return now.Want.Node, now.Want.Version != 0 && !now.Wiping
}

func (a *Agent) deletePlan() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, path := range []string{a.cfg.TraceFile, a.cfg.PlanFile + ".prev", a.cfg.PlanFile} { // the plan last: it marks the wipe
		a.cfg.Pass("forget " + filepath.Base(path))
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("delete plan: %w", err)
		}
	}
	if err := durable.SyncDir(filepath.Dir(a.cfg.PlanFile)); err != nil {
		return err
	}
	a.stored, a.lost = stored{generation: a.stored.generation + 1}, nil
	a.board.Reset()
	return nil
}

// stopLoop stops the plan and the control role, if they are running.
func (a *Agent) stopLoop(ctx context.Context) error {
	halted := make(chan struct{})
	select {
	case a.stop <- halted:
	case <-a.over: // with everything that it ran, so a caller that undoes something must not wait
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

// AddFile writes another file of the node, which a wipe will remove. It refuses once a wipe has begun: a late file, such as a permit,
// would remain for the next node.
func (a *Agent) AddFile(f plan.TicketFile) error {
	f.Path = strings.TrimPrefix(f.Path, a.cfg.Root)
	if err := f.Check(); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stored.Want.Version == 0 || a.stored.Wiping {
		return fmt.Errorf("write %s: this machine is not a node, or is being reset", f.Path)
	}
	if err := a.recordFilesLocked(a.stored.Want.Plan, []plan.TicketFile{f}); err != nil {
		return err
	}
	return a.writeFile(f)
}

// Discard deletes the data of a unit and kills its process, which then starts without data. It refuses if the mark of the unit's data
// guard exists.
func (a *Agent) Discard(name string) error {
	guard, ok := a.DataGuard(name)
	if !ok || guard.Data == "" {
		return fmt.Errorf("discard the data of %s: the plan does not contain its directory", name)
	}
	switch _, err := os.Stat(a.cfg.Root + guard.Mark); {
	case err == nil:
		return fmt.Errorf("discard the data of %s: %s marks it as in use", name, guard.Mark)
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("discard the data of %s: %w", name, err)
	}
	data := a.cfg.Root + guard.Data
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
