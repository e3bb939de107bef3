// SPDX-License-Identifier: Apache-2.0

package compose

import (
	"fmt"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/planner"
)

// Node is the plan of the node that a record describes, and the configuration that it follows from.
func Node(c config.Cluster, r admission.Node, have planner.Components) (config.Node, plan.Plan, error) {
	node, err := Configure(c, r)
	if err != nil {
		return config.Node{}, plan.Plan{}, err
	}
	p, err := planner.For(node, have)
	return node, p, err
}

// Configure is the configuration of the node that a record describes.
func Configure(c config.Cluster, r admission.Node) (config.Node, error) {
	with, err := c.WithNode(r.Pool, r.Name, r.Address, r.Index)
	if err != nil {
		return config.Node{}, err
	}
	if guest(with, r.Name) { // whoever decided did not know of it
		with = Place(with, nil)
	}
	node, err := config.ForNode(with, r.Name, Facts(r))
	if err != nil {
		return config.Node{}, err
	}
	if r.PodCIDR.IsValid() && node.PodCIDR != r.PodCIDR {
		return config.Node{}, fmt.Errorf("plan %s: its record has the pod range %s, and share %d is %s", r.Name, r.PodCIDR, r.Index, node.PodCIDR)
	}
	return node, nil
}

func guest(c config.Cluster, name string) bool {
	for _, p := range c.Pools {
		for _, n := range p.Nodes {
			if n.Name == name {
				return n.Unlisted
			}
		}
	}
	return false
}

// Facts are a record's, as a configuration needs them.
func Facts(r admission.Node) config.Facts {
	f := config.Facts{Address: r.Address, CgroupV1: r.Facts.CgroupV1, OOMScoreAdj: r.Facts.OOMScoreAdj, HasDefaultGW: r.Facts.DefaultRoute}
	if !r.Facts.UpstreamDNS {
		f.ResolvConf = config.ResolvConfFile
	}
	return f
}
