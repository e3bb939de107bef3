// SPDX-License-Identifier: Apache-2.0

package compose

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/planner"
)

// Node returns the plan of the node that a record describes, and its configuration.
func Node(c config.Cluster, r admission.Node, have planner.Components) (config.Node, plan.Plan, error) {
	node, err := Configure(c, r)
	if err != nil {
		return config.Node{}, plan.Plan{}, err
	}
	p, err := planner.For(node, have)
	return node, p, err
}

// Configure returns the configuration of the node that a record describes.
func Configure(c config.Cluster, r admission.Node) (config.Node, error) {
	with, err := c.WithNode(r.Pool, r.Name, r.Address, r.Index)
	if err != nil {
		return config.Node{}, err
	}
	if unlisted := func(n config.NodeName) bool { return n.Name == r.Name && n.Unlisted }; slices.ContainsFunc(with.AllNodes(), unlisted) {
		with = Place(with, nil) // the placement of the spec's machines does not include it
	}
	facts := r.Facts
	facts.Address = r.Address
	node, err := config.ForNode(with, r.Name, facts)
	if err != nil {
		return config.Node{}, err
	}
	if r.PodCIDR.IsValid() && node.PodCIDR != r.PodCIDR {
		return config.Node{}, fmt.Errorf("plan %s: its record has the pod CIDR %s, but the pod CIDR of index %d is %s", r.Name, r.PodCIDR, r.Index, node.PodCIDR)
	}
	return node, nil
}

// APIPort returns the port of the API server.
func APIPort(c config.Cluster) uint16 {
	if values := c.APIServer.Flags["secure-port"]; len(values) == 1 {
		if n, err := strconv.ParseUint(values[0], 10, 16); err == nil {
			return uint16(n)
		}
	}
	return 6443
}
