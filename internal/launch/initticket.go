// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"

	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/planner"
)

// ticket makes the machine the first control plane of the spec's cluster.
func (r *remoteInit) ticket(f machine.Facts, have planner.Components) (plan.Ticket, string, error) {
	all, first, err := r.fleet(f)
	if err != nil {
		return plan.Ticket{}, "", err
	}
	d, err := all.decide(r.cluster.Config, first.Name, have)
	if err != nil {
		return plan.Ticket{}, "", err
	}
	return d.founding(), first.Name, nil
}

// fleet is what is known of the spec's machines: this one, and those whose address the spec names. The others get their records
// when they join.
func (r *remoteInit) fleet(f machine.Facts) (all fleet, first *member, err error) {
	for _, p := range r.cluster.Config.Pools {
		for _, n := range p.Nodes {
			m := &member{NodeName: n, pool: p}
			m.facts.Address = n.Address
			if first == nil && m.controls() && (r.o.Node == "" || r.o.Node == n.Name) {
				first = m
			}
			if m == first || n.Address.IsValid() {
				all = append(all, m)
			}
		}
	}
	if first == nil {
		return nil, nil, &Error{InvalidSpec, fmt.Errorf("spec.pools: no control plane %q in cluster %s: a control plane makes the cluster", r.o.Node, r.cluster.Name)}
	}
	if !f.Address.IsValid() {
		return nil, nil, errors.New("the machine has no address of its own: give it one")
	}
	first.facts = f
	if !first.Address.IsValid() {
		first.Address = first.facts.Address
	}
	if first.Address != first.facts.Address {
		return nil, nil, &Error{InvalidSpec, fmt.Errorf("spec.pools: machine %s has address %s in the spec, and says %s itself: correct the spec, or name another --node",
			first.Name, first.Address, first.facts.Address)}
	}
	first.key = pin.Pin(r.o.Pin)
	return all, first, nil
}
