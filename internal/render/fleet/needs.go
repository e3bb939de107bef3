// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"slices"

	"github.com/slipway-project/slipway/internal/core/plan"
)

// units are those that have to be there before, the nearest only.
func (r *rendering) units(e plan.Entry) []string {
	var out []string
	r.walk(e, func(need plan.Entry) bool {
		u, isUnit := need.Item.(plan.Unit)
		if isUnit && !slices.Contains(out, r.file(u.Name)) {
			out = append(out, r.file(u.Name))
		}
		return !isUnit
	})
	return out
}

// closure is what a unit needs and no unit before it brings, in the order of the plan.
func (r *rendering) closure(e plan.Entry) []plan.Entry {
	mine := map[plan.Ref]bool{}
	r.walk(e, func(need plan.Entry) bool {
		_, isUnit := need.Item.(plan.Unit)
		mine[need.Ref] = !isUnit
		return !isUnit
	})
	var out []plan.Entry
	for _, x := range r.plan.Entries {
		if mine[x.Ref] {
			out = append(out, x)
		}
	}
	return out
}

func (r *rendering) walk(e plan.Entry, visit func(need plan.Entry) (further bool)) {
	seen := map[plan.Ref]bool{}
	var step func(e plan.Entry)
	step = func(e plan.Entry) {
		for _, ref := range e.Needs {
			if seen[ref] {
				continue
			}
			seen[ref] = true
			if need := r.entries[ref]; visit(need) {
				step(need)
			}
		}
	}
	step(e)
}

// needed tells whether some unit will bring it.
func (r *rendering) needed(ref plan.Ref) bool {
	return slices.ContainsFunc(r.plan.Entries, func(e plan.Entry) bool {
		if _, isUnit := e.Item.(plan.Unit); !isUnit {
			return false
		}
		return slices.ContainsFunc(r.closure(e), func(x plan.Entry) bool { return x.Ref == ref })
	})
}
