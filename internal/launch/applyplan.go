// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/artifact"
	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// plan finds out what is to be done, and tells the cargo what each machine needs.
func (a *apply) plan(ctx context.Context, probes []*probe) (ApplyPlan, error) {
	out := ApplyPlan{Cluster: a.cluster.Name, Release: a.cluster.Release.Kubernetes, Machines: make([]ApplyNode, len(probes))}
	all, err := a.seen(probes)
	if err != nil {
		return out, err
	}
	defer all.close()
	a.phases = map[string]string{}
	for _, m := range all {
		a.phases[m.Name] = m.phase
	}
	founder, err := all.founder()
	if err != nil {
		return out, err
	}
	looks, looking := errgroup.WithContext(ctx)
	for i, m := range all {
		looks.Go(func() error {
			n, err := a.planOne(looking, all, m, probes[i])
			if m == founder && m.phase == freePhase {
				n.Do = append(n.Do, "makes the cluster")
			} else if m.phase == freePhase {
				n.Do = append(n.Do, "joins as "+strings.Join(m.pool.Roles, " and "))
			}
			out.Machines[i] = n
			return err
		})
	}
	return out, looks.Wait()
}

// seen is the fleet as the probes have found it. No machine's agent need run.
func (a *apply) seen(probes []*probe) (fleet, error) {
	indexes := compose.Indexes(a.cluster.Config) // settled meanwhile
	var all fleet
	for _, p := range probes {
		r := p.report
		m := &member{NodeName: p.node, pool: p.pool, enrolment: enrolment{phase: r.Lock, cluster: r.Cluster, node: r.Node}}
		m.Index = indexes[m.Name]
		m.facts = r.Facts
		if !m.facts.Address.IsValid() {
			m.facts.Address = p.node.Address
		}
		if r.Lock != freePhase {
			var err error
			if m.agent, err = agentAt(a.far.At(m.Name)); err != nil {
				all.close()
				return nil, err
			}
		}
		all = append(all, m)
	}
	return all, nil
}

func (a *apply) planOne(ctx context.Context, all fleet, m *member, p *probe) (ApplyNode, error) {
	n := ApplyNode{Name: m.Name, Address: m.Address.String(), Roles: m.pool.Roles, Do: []string{}}
	d, err := all.decide(a.cluster.Config, m.Name, a.components)
	if err != nil {
		return n, err
	}
	a.far.brings.needs(m.Name, a.parts(d.plan))
	missing, err := a.far.brings.missing(ctx, a.far.host(m.Name))
	if err != nil {
		return n, fmt.Errorf("machine %s: %w", m.Name, err)
	}
	if p.replaces {
		n.Do = append(n.Do, "gets slipway "+a.Version)
	} else if p.old {
		n.Do = append(n.Do, "starts its agent anew, which runs an earlier program or unit")
	}
	if len(missing) > 0 {
		var size int64
		for _, b := range missing {
			size += b.Size
		}
		n.Do = append(n.Do, fmt.Sprintf("gets %s (%d MiB)", Plural(len(missing), "component"), size>>20))
	}
	if m.phase != committedPhase {
		return n, nil
	}
	return n, a.change(ctx, all, m, &n)
}

// busyPatience is for an agent that decides what is done to its machine: one that is only slow is not started anew.
const busyPatience = 10 * time.Second

// change asks a machine of the cluster what its new plan would change.
func (a *apply) change(ctx context.Context, all fleet, m *member, n *ApplyNode) error {
	limited, cancel := context.WithTimeout(ctx, busyPatience)
	defer cancel()
	status, err := m.agent.Status(limited)
	if err != nil {
		n.Do = append(n.Do, "its agent does not answer, and is started")
		return nil
	}
	if status.Cluster != "" && status.Cluster != a.cluster.Name {
		return fmt.Errorf("machine %s is a node of cluster %s: take it out of that one first: slipway node remove, then slipway node reset there", m.Name, status.Cluster)
	}
	if m.facts, m.enrolment, err = m.agent.Meet(ctx); err != nil {
		return fmt.Errorf("machine %s: %w", m.Name, err)
	}
	d, err := all.compare(ctx, a.cluster.Config, m, a.components)
	if err != nil {
		return fmt.Errorf("machine %s: compare with its plan: %w", m.Name, err)
	}
	n.Steps = append(d.Steps, d.Unknown...)
	if len(n.Steps) > 0 {
		n.Do = append(n.Do, "changes "+Plural(len(n.Steps), "item"))
	}
	return nil
}

// parts are the files of the release that a plan needs.
func (a *apply) parts(p plan.Plan) []artifact.Blob {
	needs := map[string]bool{}
	for _, e := range p.Entries {
		if f, ok := e.Item.(plan.Artifact); ok {
			needs[f.Digest] = true
		}
	}
	var out []artifact.Blob
	for _, list := range []map[string]artifact.Blob{a.bundle.Binaries, a.bundle.Images} {
		for _, b := range list {
			if needs[b.Digest.String()] {
				out = append(out, b)
			}
		}
	}
	slices.SortFunc(out, func(x, y artifact.Blob) int { return strings.Compare(x.Digest.String(), y.Digest.String()) })
	return slices.Compact(out)
}
