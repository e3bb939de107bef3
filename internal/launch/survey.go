// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"slices"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/plan"
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

// decided is what one machine is given: its configuration, its plan, and the control role's document where it has that role.
type decided struct {
	node config.Node
	plan plan.Plan
	doc  []byte
}

// decide plans for one machine of the fleet.
func (f fleet) decide(c config.Cluster, name string, have planner.Components) (d decided, err error) {
	records, err := f.records(c) // in the order of the fleet
	if err != nil {
		return d, err
	}
	at := slices.IndexFunc(records, func(r admission.Node) bool { return r.Name == name })
	if at < 0 {
		return d, fmt.Errorf("plan %s: it has no record", name)
	}
	if d.node, d.plan, err = compose.Node(c, records[at], have); err != nil || !f[at].controls() {
		return d, err
	}
	nodes := make([]config.Node, 0, len(records))
	for _, r := range records {
		n, err := compose.Configure(c, r)
		if err != nil {
			return d, err
		}
		nodes = append(nodes, n)
	}
	d.doc, err = controlDocument(c, name, nodes, records, have)
	return d, err
}
