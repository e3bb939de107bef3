// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/bundle"
	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/core/config"
	coremachine "github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/planner"
	"github.com/slipway-project/slipway/internal/core/spec"
	"github.com/slipway-project/slipway/internal/core/userdata"
	"github.com/slipway-project/slipway/internal/inventory"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/operate"
	"github.com/slipway-project/slipway/internal/provider"
	"github.com/slipway-project/slipway/internal/render"
	"github.com/slipway-project/slipway/internal/render/systemd"
)

// PlannedNode is one node's plan and what it was made from.
type PlannedNode struct {
	Cluster clusterdir.Cluster
	Node    config.Node
	Plan    plan.Plan
	// Assumed says what was not known and assumed to be as usual: facts of a machine that is not running, components that are
	// not built.
	Assumed []string
}

// PlanNode plans for one node, the first if none is named, without changing anything. Facts are asked from the machine's agent
// if the machine is running, and assumed otherwise.
func PlanNode(ctx context.Context, inv inventory.Inventory, s clusterdir.Source, node string) (PlannedNode, error) {
	cluster, err := inv.Dir.Load(s)
	if err != nil {
		return PlannedNode{}, err
	}
	if _, list, err := inv.List(ctx, cluster.Name); err == nil {
		cluster.Config = keepIndexes(cluster.Config, list)
	}
	name, err := findNode(cluster.Config, node)
	if err != nil {
		return PlannedNode{}, err
	}
	p := PlannedNode{Cluster: cluster, Assumed: cluster.Unplaced()}
	facts, err := askFacts(ctx, inv, cluster.Name, name.Name)
	if err != nil {
		facts = coremachine.Facts{Address: localAddress(name), OOMScoreAdj: true, UpstreamDNS: true}
		p.Assumed = append(p.Assumed, fmt.Sprintf("machine %s (%v): assuming address %s and cgroup v2", name.Name, err, facts.Address))
	}
	if p.Node, err = config.ForNode(cluster.Config, name.Name, facts); err != nil {
		return PlannedNode{}, err
	}
	components, assumed := knownComponents(ctx, inv.Dir, cluster)
	p.Assumed = append(p.Assumed, assumed...)
	if p.Plan, err = planner.For(p.Node, components); err != nil {
		return PlannedNode{}, err
	}
	return p, nil
}

func findNode(c config.Cluster, wanted string) (config.NodeName, error) {
	var names []string
	for _, p := range c.Pools {
		for _, n := range p.Nodes {
			if wanted == "" || n.Name == wanted {
				return n, nil
			}
			names = append(names, n.Name)
		}
	}
	if len(names) > 5 {
		names = append(names[:5], "…")
	}
	return config.NodeName{}, fmt.Errorf("node %q: cluster %s has %s", wanted, c.Name, strings.Join(names, ", "))
}

// askFacts asks a machine's agent. The error says why that is not possible.
func askFacts(ctx context.Context, inv inventory.Inventory, cluster, name string) (coremachine.Facts, error) {
	machines, list, err := inv.List(ctx, cluster)
	if errors.Is(err, clusterdir.ErrNoCluster) {
		return coremachine.Facts{}, errors.New("not created yet")
	}
	if err != nil {
		return coremachine.Facts{}, err
	}
	m, err := provider.Pick(cluster, list, name)
	if err != nil {
		return coremachine.Facts{}, errors.New("not created yet")
	}
	if !m.Running {
		return coremachine.Facts{}, errors.New("not running")
	}
	ctx, cancel := context.WithTimeout(ctx, agentclient.Timeout)
	defer cancel()
	agent, err := agentclient.Dial(provider.Agent(machines.Host(name)))
	if err != nil {
		return coremachine.Facts{}, err
	}
	defer agent.Close()
	i, err := agent.Addressed(ctx)
	return i.Facts, err
}

// knownComponents returns the digests of the release's components, with placeholders for those that are not built, and what
// that means for a plan made with them.
func knownComponents(ctx context.Context, dir clusterdir.Dir, c clusterdir.Cluster) (planner.Components, []string) {
	out := bundle.Placeholders(c.Release)
	have, complete, err := dir.Components().Lookup(ctx, c.Release)
	maps.Copy(out, bundle.Digests(have))
	switch {
	case err != nil:
		return out, []string{fmt.Sprintf("components (%v): their digests are unknown", err)}
	case !complete:
		return out, []string{"components are not built yet: their digests are unknown"}
	}
	return out, nil
}

// Form is a way to write a node's plan for another program: one row of the table of slipway render.
type Form struct {
	Name    string // such as "systemd"
	Summary string // a few words for the command's help
	Render  func(ctx context.Context, inv inventory.Inventory, p PlannedNode) (render.Rendered, error)
	Example string // optional: the other flags of an example for the command's help
}

// PlanForm is a form that depends only on the plan.
func PlanForm(name, summary string, form func(p plan.Plan) (render.Rendered, error)) Form {
	return Form{Name: name, Summary: summary, Render: func(_ context.Context, _ inventory.Inventory, p PlannedNode) (render.Rendered, error) {
		return form(p.Plan)
	}}
}

// FirstBootForm is a form that a machine reads at its first boot, to join a cluster that is running. The machine gets its plan
// when it joins.
func FirstBootForm(name, summary, file string, form func(d userdata.Data) ([]byte, error)) Form {
	return Form{Name: name, Summary: summary, Render: func(ctx context.Context, inv inventory.Inventory, p PlannedNode) (render.Rendered, error) {
		if p.Node.Pool.Replacement != spec.ByAddress {
			return render.Rendered{}, fmt.Errorf("node %s is in pool %s, whose machines join with a token or by a known key, and neither belongs in user data: "+
				"set replacement: ByAddress for the pool (slipway spec explain spec.pools.replacement), or use slipway token create and slipway join", p.Plan.Node, p.Node.Pool.Name)
		}
		invitation, err := operate.Invite(ctx, inv, p.Cluster.Name)
		if err != nil {
			return render.Rendered{}, err
		}
		wire, err := plan.Encode(p.Plan)
		if err != nil {
			return render.Rendered{}, err
		}
		sum := sha256.Sum256(wire)
		text, err := form(userdata.Data{
			Cluster: p.Cluster.Name, Node: p.Plan.Node, Plan: "sha256:" + hex.EncodeToString(sum[:]), Pin: pin.Pin(invitation.Pin), Endpoints: invitation.Endpoints,
			Stores: invitation.Stores, Program: invitation.Program, Agent: string(systemd.AgentService(userdata.Program)),
		})
		if err != nil {
			return render.Rendered{}, err
		}
		var r render.Rendered
		r.Add(file, 0o644, string(text))
		for _, e := range p.Plan.Entries {
			r.Omit(e.Ref, "the machine gets its plan from a control plane when it joins")
		}
		return r.Finish(p.Plan)
	}}
}

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
// or one of its machines does not respond.
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
