// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/json"

	"github.com/slipway-project/slipway/internal/core/plan"
)

// rawPlan is a plan in the agent's memory; it is read as strictly as one from the wire, except that there may be none.
type rawPlan struct{ plan.Plan }

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
	p, err := plan.Decode(data)
	r.Plan = p
	return err
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
