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

// kept is the agent's whole memory.
type kept struct {
	Want    rawPlan  `json:"want"`
	Before  rawPlan  `json:"before"` // what an earlier plan may have made and nobody has removed yet
	Control []byte   `json:"control,omitempty"`
	Files   []string `json:"files,omitempty"`  // that came with a ticket
	Wiping  bool     `json:"wiping,omitempty"` // all this is being removed

	generation int // counts what was kept since this agent began
}

const keptSchema = 1

// errForeign: another version of this program kept the plan. That is no damage, and only that version may replace it.
var errForeign = errors.New("another version of slipway kept it: use that one, or a newer one")

// recall reads what was kept before; found is false when nothing ever was.
func (a *Agent) recall() (found bool, err error) {
	file := a.cfg.PlanFile
	stale, err := durable.Read(file, keptSchema, &a.kept)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case errors.Is(err, durable.ErrDamaged):
		return false, fmt.Errorf("read the kept plan: %w: run slipway up again: it hands over the plan anew and sets %s and %s.prev aside",
			err, file, file)
	case errors.Is(err, durable.ErrSchema):
		return false, fmt.Errorf("read the kept plan: %w: %w", err, errForeign)
	case err != nil:
		return false, fmt.Errorf("read the kept plan: %w", err)
	}
	if err := errors.Join(a.kept.Want.unreadable, a.kept.Before.unreadable); err != nil {
		return false, fmt.Errorf("read the kept plan %s: %w: %w", file, err, errForeign)
	}
	if stale {
		a.cfg.Log.Warn("the newest kept plan is damaged, the one before is taken: run slipway up again", "file", file)
	}
	return true, nil
}

// setAside makes room for a plan where there is one that cannot be read. The operator's plan counts for more than a damaged
// memory, whose files stay beside it for whoever wants to know; units of it that the new plan has not run on.
func (a *Agent) setAside() error {
	if a.lost == nil {
		return nil
	}
	if !errors.Is(a.lost, durable.ErrDamaged) {
		return a.lost
	}
	when := time.Now().UTC().Format("20060102T150405.000000000Z")
	for _, path := range []string{a.cfg.PlanFile, a.cfg.PlanFile + ".prev"} {
		if err := os.Rename(path, path+".damaged-"+when); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("set the damaged plan aside: %w", err)
		}
	}
	a.cfg.Log.Warn("the damaged plan was set aside", "file", a.cfg.PlanFile, "as", "*.damaged-"+when)
	a.lost = nil
	return durable.SyncDir(filepath.Dir(a.cfg.PlanFile))
}

func (a *Agent) current() kept {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.kept
}

func (a *Agent) remember(want plan.Plan, control []byte) (changed bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.setAside(); err != nil {
		return false, err
	}
	if a.kept.Wiping {
		return false, errors.New("this machine is being reset: it takes no plan")
	}
	old := a.kept.Want
	if old.Version != 0 && (old.Cluster != want.Cluster || old.Node != want.Node) {
		return false, fmt.Errorf("this machine is node %s of cluster %s: it does not take a plan for node %s of cluster %s",
			old.Node, old.Cluster, want.Node, want.Cluster)
	}
	changed, err = differ(old.Plan, want)
	if err != nil {
		return false, err
	}
	if !changed && bytes.Equal(a.kept.Control, control) {
		return false, nil
	}
	next := kept{
		Want: rawPlan{Plan: want}, Before: rawPlan{Plan: merge(old.Plan, a.kept.Before.Plan)}, Control: control, Files: a.kept.Files, generation: a.kept.generation + 1,
	}
	a.cfg.Pass("keep the plan")
	if err := durable.Save(a.cfg.PlanFile, keptSchema, next); err != nil {
		return false, fmt.Errorf("keep the plan: %w", err)
	}
	a.kept = next
	a.cfg.Pass("plan kept")
	return true, nil
}

// forget drops the earlier plan once all that was only in it is gone. A plan that was kept meanwhile has put what it follows
// into Before, and the loop that would forget it knows nothing of that.
func (a *Agent) forget(done kept) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.kept.generation != done.generation || len(a.kept.Before.Entries) == 0 {
		return
	}
	next := a.kept
	next.Before = rawPlan{}
	if err := durable.Save(a.cfg.PlanFile, keptSchema, next); err != nil {
		a.cfg.Log.Warn("forget the earlier plan", "error", err) // it is tried again after the next start
		return
	}
	a.kept = next
}

// rawPlan is a plan in the agent's memory; it is read as strictly as one from the wire, except that there may be none. A plan
// that this agent does not understand is no damage: it is not replaced by an older one, but refused (see New).
type rawPlan struct {
	plan.Plan
	unreadable error
}

func (r rawPlan) MarshalJSON() ([]byte, error) {
	if r.Version == 0 {
		return []byte("null"), nil
	}
	return json.Marshal(r.Plan)
}

func (r *rawPlan) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil
	}
	r.Plan, r.unreadable = plan.Decode(data)
	return nil
}

// merge is the plan of everything that two plans may have made: all of a, then what only b has.
func merge(a, b plan.Plan) plan.Plan {
	if a.Version == 0 {
		return b
	}
	only := plan.Removed(a, b) // dependents first
	out := a
	out.Entries = make([]plan.Entry, 0, len(only)+len(a.Entries))
	for i := len(only) - 1; i >= 0; i-- {
		e := only[i]
		e.Needs = slices.DeleteFunc(slices.Clone(e.Needs), func(need plan.Ref) bool { // a need may be gone, or come later
			return !slices.ContainsFunc(out.Entries, func(have plan.Entry) bool { return have.Ref == need })
		})
		out.Entries = append(out.Entries, e)
	}
	out.Entries = append(out.Entries, a.Entries...)
	return out
}

func differ(a, b plan.Plan) (bool, error) {
	x, err := json.Marshal(a)
	if err != nil {
		return false, err
	}
	y, err := json.Marshal(b)
	return !bytes.Equal(x, y), err
}
