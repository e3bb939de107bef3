// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/durable"
)

// stored is the content of the plan file, and the agent's only state.
type stored struct {
	Want    rawPlan  `json:"want"`
	Before  rawPlan  `json:"before"` // items of earlier plans that may not be removed yet
	Control []byte   `json:"control,omitempty"`
	Files   []string `json:"files,omitempty"`  // files of the ticket
	Wiping  bool     `json:"wiping,omitempty"` // everything is being removed

	generation int // number of plans stored since this agent started
}

const storedSchema = 1

// errForeign says that another version of this program has stored the plan. The file is not damaged, so it must not be replaced.
var errForeign = errors.New("another version of slipway stored it: use that version, or a newer one")

// load reads the plan file. found is false if there is none.
func (a *Agent) load() (found bool, err error) {
	file := a.cfg.PlanFile
	stale, err := durable.Read(file, storedSchema, &a.stored)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case errors.Is(err, durable.ErrDamaged):
		return false, fmt.Errorf("read stored plan: %w: run slipway up, which sends the plan again and renames %s and %s.prev", err, file, file)
	case errors.Is(err, durable.ErrSchema):
		return false, fmt.Errorf("read stored plan: %w: %w", err, errForeign)
	case err != nil:
		return false, fmt.Errorf("read stored plan: %w", err)
	}
	if err := errors.Join(a.stored.Want.unreadable, a.stored.Before.unreadable); err != nil {
		return false, fmt.Errorf("read stored plan %s: %w: %w", file, err, errForeign)
	}
	if stale {
		a.cfg.Log.Warn("the newest plan is damaged, using the previous one: run slipway up", "file", file)
	}
	return true, nil
}

// renameDamagedLocked makes room for a new plan if the stored one is damaged. The operator's plan takes precedence over a damaged
// file, which is renamed for an investigation. Units that only the damaged plan contains keep running.
func (a *Agent) renameDamagedLocked() error {
	if a.lost == nil {
		return nil
	}
	if !errors.Is(a.lost, durable.ErrDamaged) {
		return a.lost
	}
	when := time.Now().UTC().Format("20060102T150405.000000000Z")
	for _, path := range []string{a.cfg.PlanFile, a.cfg.PlanFile + ".prev"} {
		if err := os.Rename(path, path+".damaged-"+when); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("rename damaged plan: %w", err)
		}
	}
	a.cfg.Log.Warn("renamed the damaged plan", "file", a.cfg.PlanFile, "to", "*.damaged-"+when)
	a.lost = nil
	return durable.SyncDir(filepath.Dir(a.cfg.PlanFile))
}

func (a *Agent) current() stored {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stored
}

// store writes a plan and its control document to the disk, and reports whether they differ from the stored ones.
func (a *Agent) store(want plan.Plan, control []byte) (changed bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.renameDamagedLocked(); err != nil {
		return false, err
	}
	if a.stored.Wiping {
		return false, errors.New("this machine is being reset and does not accept a plan")
	}
	old := a.stored.Want
	if old.Version != 0 && (old.Cluster != want.Cluster || old.Node != want.Node) {
		return false, fmt.Errorf("this machine is node %s of cluster %s: it does not accept a plan for node %s of cluster %s",
			old.Node, old.Cluster, want.Node, want.Cluster)
	}
	have, err := json.Marshal(old.Plan)
	if err != nil {
		return false, err
	}
	next, err := json.Marshal(want)
	if err != nil {
		return false, err
	}
	if bytes.Equal(have, next) && bytes.Equal(a.stored.Control, control) {
		return false, nil
	}
	s := stored{
		Want: rawPlan{Plan: want}, Before: rawPlan{Plan: merge(old.Plan, a.stored.Before.Plan)}, Control: control, Files: a.stored.Files, generation: a.stored.generation + 1,
	}
	a.cfg.Pass("keep the plan")
	if err := durable.Save(a.cfg.PlanFile, storedSchema, s); err != nil {
		return false, fmt.Errorf("write plan: %w", err)
	}
	a.stored = s
	a.cfg.Pass("plan kept")
	return true, nil
}

// deleteBefore drops the earlier plans once done has converged. If another plan was stored since, its Before contains items that the
// caller's run does not know, so it is left as it is.
func (a *Agent) deleteBefore(done stored) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stored.generation != done.generation || len(a.stored.Before.Entries) == 0 {
		return
	}
	next := a.stored
	next.Before = rawPlan{}
	if err := durable.Save(a.cfg.PlanFile, storedSchema, next); err != nil {
		a.cfg.Log.Warn("drop the earlier plan", "error", err) // the next start retries
		return
	}
	a.stored = next
}

// rawPlan is a plan in the plan file. It is decoded as strictly as one from the wire, but may be missing. A plan that this agent does
// not understand is not treated as damage: it is refused and not replaced by the previous one (see load).
type rawPlan struct {
	plan.Plan
	unreadable error
}

// MarshalJSON encodes a missing plan as null.
func (r rawPlan) MarshalJSON() ([]byte, error) {
	if r.Version == 0 {
		return []byte("null"), nil
	}
	return json.Marshal(r.Plan)
}

// UnmarshalJSON stores the error of an unreadable plan in r.
func (r *rawPlan) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil
	}
	r.Plan, r.unreadable = plan.Decode(data)
	return nil
}

// merge returns a plan of everything that two plans may have created: all of a, preceded by what only b has.
func merge(a, b plan.Plan) plan.Plan {
	if a.Version == 0 {
		return b
	}
	only := plan.Removed(a, b) // dependents first
	out := a
	out.Entries = make([]plan.Entry, 0, len(only)+len(a.Entries))
	for _, e := range slices.Backward(only) {
		e.Needs = slices.DeleteFunc(slices.Clone(e.Needs), func(need plan.Ref) bool { // a needed item may be missing, or come later
			return !slices.ContainsFunc(out.Entries, func(have plan.Entry) bool { return have.Ref == need })
		})
		out.Entries = append(out.Entries, e)
	}
	out.Entries = append(out.Entries, a.Entries...)
	return out
}
