// SPDX-License-Identifier: Apache-2.0

package compose

import (
	"fmt"
	"net/netip"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/objects"
)

// AddOns lists what is applied to the cluster: its own objects, then the user's add-ons. nodes are the records of the spec's machines.
func AddOns(c config.Cluster, nodes []admission.Node) ([]objects.AddOn, error) {
	out, err := objects.Cluster(objects.Params{
		DNSAddress: c.DNSAddress, Replicas: c.CoreDNS.Replicas, Corefile: c.CoreDNS.Corefile, CoreDNSImage: c.CoreDNSImage,
		APIEndpoint: apiEndpoint(c, nodes), Spread: len(nodes) >= c.CoreDNS.Replicas && len(nodes) > 1,
	})
	if err != nil {
		return nil, err
	}
	for _, a := range c.AddOns {
		parsed, err := objects.Parse(a.Name, a.Manifest)
		if err != nil {
			return nil, fmt.Errorf("spec.addOns: %s: %w", a.Name, err)
		}
		out = append(out, parsed)
	}
	return out, nil
}

// apiEndpoint is where CoreDNS finds the API of the only control plane. With several it is zero: the Service finds one that is ready.
func apiEndpoint(c config.Cluster, nodes []admission.Node) netip.AddrPort {
	var only netip.AddrPort
	count := 0
	for _, n := range nodes {
		for _, p := range c.Pools {
			if p.Name != n.Pool || !p.Has(config.RoleControlPlane) {
				continue
			}
			if count++; count > 1 {
				return netip.AddrPort{}
			}
			only = netip.AddrPortFrom(n.Address, APIPort(c))
		}
	}
	return only
}
