// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"encoding/json"
	"net/netip"
	"slices"

	"github.com/slipway-project/slipway/internal/control"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/objects"
	"github.com/slipway-project/slipway/internal/core/planner"
)

// controlDocument is what the control role on one node works from: the cluster's objects, the machines' records, and what it needs
// to plan for a machine that joins.
func controlDocument(c config.Cluster, self string, nodes []config.Node, records []admission.Node, have planner.Components) ([]byte, error) {
	addOns, err := objects.Cluster(objects.Params{
		DNSAddress: c.DNSAddress, Replicas: c.CoreDNS.Replicas, Corefile: c.CoreDNS.Corefile, CoreDNSImage: c.CoreDNSImage,
		APIEndpoint: apiEndpoint(nodes), Spread: len(nodes) >= c.CoreDNS.Replicas && len(nodes) > 1,
	})
	if err != nil {
		return nil, err
	}
	for _, a := range c.AddOns {
		parsed, err := objects.Parse(a.Name, a.Manifest)
		if err != nil {
			return nil, invalid("spec.addOns: %s: %w", a.Name, err)
		}
		addOns = append(addOns, parsed)
	}
	doc := control.Document{
		Version: control.Version, Cluster: c.Name, Kubeconfig: config.ControlConf, ApplyKubeconfig: config.SuperAdminConf,
		RootCA:      config.ClusterCA + ".crt",
		AddOns:      addOns,
		DNS:         control.DNS{Address: c.DNSAddress, Domain: c.ClusterDomain},
		Deployments: []control.Workload{{Namespace: "kube-system", Name: "coredns"}},
		Self:        self, ControlPlanes: len(c.ControlPlanes()), Records: records, Config: config.Print(c), Components: have, Pools: pools(c),
	}
	if !c.LoadBalancer.IsZero() {
		doc.Further = []string{c.LoadBalancer.String()}
	}
	for _, n := range nodes {
		doc.Nodes = append(doc.Nodes, nodeRecord(n))
	}
	return json.Marshal(doc)
}

// pools is what the spec says of the nodes of each pool.
func pools(c config.Cluster) map[string]control.Pool {
	out := map[string]control.Pool{}
	for _, p := range c.Pools {
		pool := control.Pool{Roles: p.Roles, Labels: p.Labels}
		for _, t := range p.Taints {
			pool.Taints = append(pool.Taints, control.Taint(t))
		}
		for _, n := range p.Nodes {
			if len(n.Labels) > 0 {
				if pool.Machines == nil {
					pool.Machines = map[string]map[string]string{}
				}
				pool.Machines[n.Name] = n.Labels
			}
		}
		out[p.Name] = pool
	}
	return out
}

func nodeRecord(n config.Node) control.Node {
	r := control.Node{Name: n.Name, Addresses: []netip.Addr{n.Facts.Address}, PodCIDR: n.PodCIDR, Labels: machine.NodeLabels(n.Pool.Roles, n.Pool.Labels, n.Labels)}
	for _, t := range n.Pool.Taints {
		r.Taints = append(r.Taints, control.Taint(t))
	}
	return r
}

// apiEndpoint is where CoreDNS finds the API of a single control plane. With several control planes it uses the Service, which
// finds one that is running.
func apiEndpoint(nodes []config.Node) netip.AddrPort {
	controls := 0
	for _, n := range nodes {
		if slices.Contains(n.Pool.Roles, config.RoleControlPlane) {
			controls++
		}
	}
	if controls > 1 {
		return netip.AddrPort{}
	}
	for _, n := range nodes {
		if slices.Contains(n.Pool.Roles, config.RoleControlPlane) {
			return netip.AddrPortFrom(n.Facts.Address, compose.APIPort(n.Cluster))
		}
	}
	return netip.AddrPort{}
}
