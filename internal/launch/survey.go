// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"

	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/planner"
	"github.com/slipway-project/slipway/internal/machine"
)

// keeping gives the nodes the shares of the pod range that their machines have already.
func keeping(c config.Cluster, list []machine.Status) config.Cluster {
	have := map[string]int{}
	for _, m := range list {
		have[m.Name] = m.Index
	}
	return c.Keeping(have)
}

// survey meets every machine of a cluster without touching any. The caller closes it.
func (l *Launcher) survey(ctx context.Context, c config.Cluster) (fleet, error) {
	local, list, err := l.machinesOf(ctx, c.Name)
	if err != nil {
		return nil, err
	}
	var all fleet
	for _, p := range keeping(c, list).Pools {
		for _, n := range p.Nodes {
			m := &member{NodeName: n, pool: p}
			if m.agent, err = DialAgent(ctx, agentSocket(local, c.Name, n.Name)); err == nil {
				all = append(all, m)
				m.facts, m.enrolment, err = m.agent.Meet(ctx)
			}
			if err != nil {
				all.close()
				return nil, err
			}
		}
	}
	return all, nil
}

// document is what up would give the control role on a node; empty where the node has none.
func (f fleet) document(c config.Cluster, node string, have planner.Components) ([]byte, error) {
	records, err := f.records(c)
	if err != nil {
		return nil, err
	}
	var nodes []config.Node
	for _, r := range records {
		n, _, err := compose.Node(c, r, have)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	for _, m := range f {
		if m.Name != node {
			continue
		}
		if !m.controls() {
			return nil, nil
		}
		return controlDocument(c, node, nodes, records, have)
	}
	return nil, errors.New("no such node")
}
