// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/planner"
	"github.com/slipway-project/slipway/internal/inventory"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/provider"
)

// Difference is the difference between a cluster and a spec: what slipway up would do.
type Difference struct {
	Cluster  string              `json:"cluster"`
	Refused  []RefusedChange     `json:"refused"` // with any of these, up refuses the whole spec
	Machines []MachineDifference `json:"machines"`
}

// RefusedChange is a change that an existing cluster cannot make, and what to do instead.
type RefusedChange struct {
	What    string `json:"what"`
	Instead string `json:"instead"`
}

// MachineDifference is what would change on one machine.
type MachineDifference struct {
	Machine string   `json:"machine"`
	New     bool     `json:"new"` // it is created, and joins
	Steps   []Change `json:"steps"`
	Unknown []Change `json:"unknown,omitempty"` // items whose state is unknown; they have no verb
	Objects bool     `json:"objects"`           // the cluster's objects or the machines' records differ
}

// Change is one step for people.
type Change struct {
	Verb   string      `json:"verb,omitempty"`
	Ref    string      `json:"ref"`
	Effect plan.Effect `json:"effect,omitempty"`
	Why    string      `json:"why"`
}

// None reports whether there is nothing to do and nothing unknown.
func (d Difference) None() bool {
	return len(d.Refused) == 0 && !slices.ContainsFunc(d.Machines, func(m MachineDifference) bool { return !m.None() })
}

// None reports whether there is nothing to do on the machine and nothing unknown.
func (m MachineDifference) None() bool {
	return !m.New && len(m.Steps) == 0 && len(m.Unknown) == 0 && !m.Objects
}

// diffLimit bounds the examination of all items of a plan, each of which takes milliseconds.
const diffLimit = time.Minute

// DiffCluster compares a cluster with a spec, machine by machine, and changes nothing. It fails when the cluster does not exist
// or one of its machines does not answer: what cannot be compared is not equal.
func DiffCluster(ctx context.Context, inv inventory.Inventory, s clusterdir.Source) (Difference, error) {
	cluster, err := inv.Dir.Load(s)
	if err != nil {
		return Difference{}, err
	}
	machines, list, err := inv.List(ctx, cluster.Name)
	if err != nil {
		return Difference{}, err
	}
	d := Difference{Cluster: cluster.Name, Refused: []RefusedChange{}, Machines: []MachineDifference{}}
	cluster.Config = keepIndexes(cluster.Config, list)
	changes, removed, err := frozenChanges(inv.Dir, cluster, list)
	if err != nil {
		return d, err
	}
	for _, what := range changes {
		d.Refused = append(d.Refused, RefusedChange{what, "data, certificates and running pods have the old value: undo the change, or create a new cluster"})
	}
	for _, name := range removed {
		if slices.ContainsFunc(list, func(m machine.Status) bool { return m.Name == name }) {
			d.Refused = append(d.Refused, RefusedChange{"spec.pools: machine " + name + " is not in the spec", fmt.Sprintf(
				"removing a machine from the spec does not remove its node: slipway node remove %s --name %s, then slipway node reset %s --name %s", name, cluster.Name, name, cluster.Name)})
		}
	}
	if len(d.Refused) > 0 {
		return d, nil
	}
	components, _ := knownComponents(ctx, inv.Dir, cluster)
	ctx, cancel := context.WithTimeout(ctx, diffLimit)
	defer cancel()
	all, err := connectExisting(ctx, machines, list, cluster.Config)
	if err != nil {
		return d, err
	}
	defer all.close()
	for _, t := range all {
		m, err := all.diff(ctx, cluster.Config, t, components)
		if err != nil {
			return d, fmt.Errorf("compare machine %s: %w", t.Name, err)
		}
		d.Machines = append(d.Machines, m)
	}
	return d, nil
}

// connectExisting asks the machines that exist; one that is to be created has the address that it will get.
func connectExisting(ctx context.Context, machines provider.Machines, list []machine.Status, c config.Cluster) (targets, error) {
	all := specTargets(c)
	for _, t := range all {
		i := slices.IndexFunc(list, func(s machine.Status) bool { return s.Name == t.Name })
		if i < 0 {
			t.Address = localAddress(t.NodeName)
			continue
		}
		err := provider.NotRunning(c.Name, list[i])
		if list[i].Running {
			if t.agent, err = agentclient.Dial(provider.Agent(machines.Host(t.Name))); err == nil {
				err = t.refresh(ctx)
			}
		}
		if err != nil {
			all.close()
			return nil, err
		}
	}
	return all, nil
}

// diff asks a machine's agent what its new plan would change.
func (all targets) diff(ctx context.Context, c config.Cluster, t *target, components planner.Components) (MachineDifference, error) {
	out := MachineDifference{Machine: t.Name, New: t.Phase != lock.Committed, Steps: []Change{}}
	if out.New {
		return out, nil
	}
	p, err := all.plan(c, t.Name, components)
	if err != nil {
		return out, err
	}
	d, err := t.agent.Diff(ctx, p.plan, p.control)
	if err != nil {
		return out, err
	}
	for _, s := range d.Steps {
		out.Steps = append(out.Steps, Change{Verb: string(s.Verb), Ref: s.Ref, Effect: effect(p.plan, s.Verb, s.Ref), Why: s.Why})
	}
	for _, s := range d.Unknown {
		out.Unknown = append(out.Unknown, Change{Ref: s.Ref, Why: s.Why})
	}
	out.Objects = d.ControlChanged
	return out, nil
}

// effect is what a step means for what is running.
func effect(p plan.Plan, v plan.Verb, ref string) plan.Effect {
	if e, ok := p.Find(ref); ok {
		return plan.EffectOf(e, v)
	}
	if strings.HasPrefix(ref, "unit/") || strings.HasPrefix(ref, "staticpod/") { // it is removed
		return plan.Restart
	}
	return plan.Live
}
