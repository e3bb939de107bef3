// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"

	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/config"
	coremachine "github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/planner"
	"github.com/slipway-project/slipway/internal/machine"
)

// Planned is one node's plan and what it rests on.
type Planned struct {
	Cluster Cluster
	Node    config.Node
	Plan    plan.Plan
	// Assumed says what was not known and taken as usual: facts of a machine that does not run, components not built.
	Assumed []string
	have    planner.Components
	agent   dialer // of the node, if it runs
}

// Plan says what a node must have, without touching anything. Facts come from the machine's agent when it runs and are
// assumed otherwise. No node named means the first.
func (l *Launcher) Plan(ctx context.Context, s Source, node string) (Planned, error) {
	cluster, err := l.Load(s)
	if err != nil {
		return Planned{}, err
	}
	if _, list, err := l.machinesOf(ctx, cluster.Name); err == nil {
		cluster.Config = keeping(cluster.Config, list)
	}
	name, err := nodeOf(cluster.Config, node)
	if err != nil {
		return Planned{}, err
	}
	p := Planned{Cluster: cluster, Assumed: cluster.unplaced()}
	facts := p.facts(ctx, l, name)
	if p.Node, err = config.ForNode(cluster.Config, name.Name, facts); err != nil {
		return Planned{}, err
	}
	p.have = p.components(ctx, l)
	if p.Plan, err = planner.For(p.Node, p.have); err != nil {
		return Planned{}, err
	}
	return p, nil
}

func nodeOf(c config.Cluster, wanted string) (config.NodeName, error) {
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

// facts asks the node's machine, and assumes an ordinary one when it does not run.
func (p *Planned) facts(ctx context.Context, l *Launcher, n config.NodeName) coremachine.Facts {
	facts, err := p.ask(ctx, l, n.Name)
	if err == nil {
		return facts
	}
	assumed := coremachine.Facts{Address: address(n), OOMScoreAdj: true, UpstreamDNS: true}
	p.Assumed = append(p.Assumed, fmt.Sprintf("machine %s (%v): address %s and cgroup v2 are assumed", n.Name, err, assumed.Address))
	return assumed
}

func (p *Planned) ask(ctx context.Context, l *Launcher, node string) (coremachine.Facts, error) {
	machines, list, err := l.machinesOf(ctx, p.Cluster.Name)
	if errors.Is(err, ErrNoCluster) {
		return coremachine.Facts{}, errors.New("not made yet")
	}
	if err != nil {
		return coremachine.Facts{}, err
	}
	m, err := pick(p.Cluster.Name, list, node)
	if err != nil {
		return coremachine.Facts{}, errors.New("not made yet")
	}
	if !m.Running {
		return coremachine.Facts{}, errors.New("not running")
	}
	ctx, cancel := context.WithTimeout(ctx, agentPatience)
	defer cancel()
	p.agent = toAgent(machines.At(node))
	agent, err := dialAgent(p.agent)
	if err != nil {
		return coremachine.Facts{}, err
	}
	defer agent.Close()
	facts, _, err := agent.Facts(ctx)
	return facts, err
}

// usual is the address that a local machine gets.
func usual(index int) netip.Addr {
	a := machine.DefaultSubnet().Addr()
	for range 10 + index {
		a = a.Next()
	}
	return a
}

// components gives the bundle's digests; what is not built yet has none.
func (p *Planned) components(ctx context.Context, l *Launcher) planner.Components {
	out := placeholders(p.Cluster.Release)
	have, complete, err := l.inStore(ctx, p.Cluster.Release)
	maps.Copy(out, digests(have))
	switch {
	case err != nil:
		p.Assumed = append(p.Assumed, fmt.Sprintf("components (%v): digests are left open", err))
	case !complete:
		p.Assumed = append(p.Assumed, "components are not built yet: their digests are left open")
	}
	return out
}

// notBuilt stands for the digest of what is not in the store yet.
const notBuilt = "not-built"

func placeholders(r catalog.Release) planner.Components {
	out := planner.Components{}
	for _, c := range r.Components {
		for _, b := range c.Binaries {
			out[b.Name] = notBuilt
		}
	}
	for _, i := range r.Images() {
		out[i.Name] = notBuilt
	}
	return out
}
