// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/durable"
)

// kept is the agent's whole memory.
type kept struct {
	Want    rawPlan `json:"want"`
	Before  rawPlan `json:"before"` // what an earlier plan may have made and nobody has removed yet
	Control []byte  `json:"control,omitempty"`

	generation int // counts what was kept since this agent began
}

const keptSchema = 1

func (a *Agent) current() kept {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.kept
}

func (a *Agent) remember(want plan.Plan, control []byte) (changed bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
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
		Want: rawPlan{Plan: want}, Before: rawPlan{Plan: merge(old.Plan, a.kept.Before.Plan)}, Control: control, generation: a.kept.generation + 1,
	}
	if err := durable.Save(a.cfg.PlanFile, keptSchema, next); err != nil {
		return false, fmt.Errorf("keep the plan: %w", err)
	}
	a.kept = next
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
	only := plan.Gone(a, b) // dependents first
	out := a
	out.Entries = make([]plan.Entry, 0, len(only)+len(a.Entries))
	for i := len(only) - 1; i >= 0; i-- {
		e := only[i]
		e.Needs = nil // its order survives as its place; its needs may be gone
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
