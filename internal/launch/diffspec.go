// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/planner"
	"github.com/slipway-project/slipway/internal/machine"
)

// Difference is what lies between a cluster and a spec: what slipway up would do with it.
type Difference struct {
	Cluster  string              `json:"cluster"`
	Never    []Never             `json:"never"` // with any of these, up refuses the whole spec
	Machines []MachineDifference `json:"machines"`
}

// Never is a change that the cluster cannot make, and what to do instead.
type Never struct {
	What    string `json:"what"`
	Instead string `json:"instead"`
}

// MachineDifference is what would change on one machine.
type MachineDifference struct {
	Machine string   `json:"machine"`
	New     bool     `json:"new"` // it is made, and joins
	Steps   []Change `json:"steps"`
	Unknown []Change `json:"unknown,omitempty"` // items of which nobody knows the state; they have no verb
	Objects bool     `json:"objects"`           // the cluster's own objects or the machines' records differ
}

// Change is a step as it is shown.
type Change struct {
	Verb   string      `json:"verb,omitempty"`
	Ref    string      `json:"ref"`
	Effect plan.Effect `json:"effect,omitempty"`
	Why    string      `json:"why"`
}

// None reports whether there is nothing to do and nothing unknown.
func (d Difference) None() bool {
	return len(d.Never) == 0 && !slices.ContainsFunc(d.Machines, func(m MachineDifference) bool { return !m.None() })
}

// None is the same of one machine.
func (m MachineDifference) None() bool {
	return !m.New && len(m.Steps) == 0 && len(m.Unknown) == 0 && !m.Objects
}

// diffLimit bounds the look at all items of a plan, each of which takes milliseconds.
const diffLimit = time.Minute

// Diff compares a cluster with a spec, machine by machine. Nothing is done. It fails when there is no such cluster, or when a machine
// of it does not answer: what cannot be compared is not the same.
func (l *Launcher) Diff(ctx context.Context, s Source) (Difference, error) {
	cluster, err := l.Load(s)
	if err != nil {
		return Difference{}, err
	}
	machines, list, err := l.machinesOf(ctx, cluster.Name)
	if err != nil {
		return Difference{}, err
	}
	d := Difference{Cluster: cluster.Name, Never: []Never{}, Machines: []MachineDifference{}}
	if d.Never, err = l.never(cluster, list); err != nil || len(d.Never) > 0 {
		return d, err
	}
	cluster.Config = keeping(cluster.Config, list)
	p := Planned{Cluster: cluster}
	have := p.components(ctx, l)
	ctx, cancel := context.WithTimeout(ctx, diffLimit)
	defer cancel()
	all, err := l.meetThose(ctx, machines, list, cluster.Config)
	if err != nil {
		return d, err
	}
	defer all.close()
	for _, m := range all {
		one, err := all.compare(ctx, cluster.Config, m, have)
		if err != nil {
			return d, fmt.Errorf("compare machine %s: %w", m.Name, err)
		}
		d.Machines = append(d.Machines, one)
	}
	return d, nil
}

// never lists what up would refuse.
func (l *Launcher) never(now Cluster, list []machine.Status) ([]Never, error) {
	file := l.specFile(now.Name)
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the kept spec: %w", err)
	}
	version, err := l.keptVersion(now.Name)
	if err != nil {
		return nil, fmt.Errorf("read the kept version: %w", err)
	}
	old, err := complete(file, text, Source{Name: now.Name, Version: version})
	if err != nil {
		return nil, fmt.Errorf("read the kept spec: %w", err)
	}
	old.Config = keeping(old.Config, list)
	out := []Never{}
	for _, what := range immutableChanges(old.Config, now.Config) {
		out = append(out, Never{what, "data, certificates and running pods have the old value: undo the change, or make a new cluster"})
	}
	for _, name := range compose.Missing(old.Config, now.Config) {
		if slices.ContainsFunc(list, func(m machine.Status) bool { return m.Name == name }) {
			out = append(out, Never{"spec.pools: machine " + name + " is left out", fmt.Sprintf(
				"a spec takes no node out: slipway node remove %s --name %s, then slipway node reset %s --name %s", name, now.Name, name, now.Name)})
		}
	}
	return out, nil
}

// meetThose meets the machines that are there; one that is to be made has the address that it will get.
func (l *Launcher) meetThose(ctx context.Context, machines provider, list []machine.Status, c config.Cluster) (all fleet, err error) {
	for _, p := range c.Pools {
		for _, n := range p.Nodes {
			m := &member{NodeName: n, pool: p}
			all = append(all, m)
			at := slices.IndexFunc(list, func(s machine.Status) bool { return s.Name == n.Name })
			switch {
			case at < 0:
				m.Address = address(n)
				continue
			case !list[at].Running:
				err = fmt.Errorf("machine %s: %w: start it with slipway machine start %s --name %s", n.Name, machine.ErrNotRunning, n.Name, c.Name)
			default:
				if m.agent, err = agentAt(machines.At(n.Name)); err == nil {
					m.facts, m.enrolment, err = m.agent.Meet(ctx)
				}
			}
			if err != nil {
				all.close()
				return nil, err
			}
		}
	}
	return all, nil
}

// compare asks the machine's agent what its new plan would lead to.
func (f fleet) compare(ctx context.Context, c config.Cluster, m *member, have planner.Components) (MachineDifference, error) {
	out := MachineDifference{Machine: m.Name, New: m.phase != committedPhase, Steps: []Change{}}
	if out.New {
		return out, nil
	}
	d, err := f.decide(c, m.Name, have)
	if err != nil {
		return out, err
	}
	wire, err := plan.Encode(d.plan)
	if err != nil {
		return out, err
	}
	r, err := m.agent.client.Diff(ctx, &nodev1.DiffRequest{Plan: wire, Control: d.doc}, grpc.WaitForReady(true))
	if err != nil {
		return out, plain(err)
	}
	out.Steps, out.Unknown, out.Objects = changes(d.plan, r.GetSteps()), changes(plan.Plan{}, r.GetUnknown()), r.GetControlChanged()
	return out, nil
}

// changes translates steps; what they mean for others the plan says.
func changes(p plan.Plan, steps []*nodev1.Step) []Change {
	out := make([]Change, 0, len(steps))
	for _, s := range steps {
		c := Change{Verb: s.GetVerb(), Ref: s.GetRef(), Why: s.GetWhy()}
		if c.Verb != "" {
			c.Effect = effect(p, plan.Verb(c.Verb), c.Ref)
		}
		out = append(out, c)
	}
	return out
}

func effect(p plan.Plan, v plan.Verb, ref string) plan.Effect {
	if e, ok := p.Find(ref); ok {
		return plan.EffectOf(e, v)
	}
	if strings.HasPrefix(ref, "unit/") || strings.HasPrefix(ref, "staticpod/") { // it goes
		return plan.Restart
	}
	return plan.Live
}
