// SPDX-License-Identifier: Apache-2.0

package compose

import (
	"net/netip"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/endpoint"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// Policy is what a spec and its release permit machines that join.
func Policy(cluster config.Cluster, release catalog.Release) admission.Policy {
	p := admission.Policy{
		Cluster: cluster.Name, APIServer: release.Kubernetes, PodCIDR: cluster.PodCIDR, NodePodPrefix: cluster.NodePodPrefix,
		ServiceCIDR: cluster.ServiceCIDR, Pools: map[string]admission.Pool{}, Reserved: apiAddresses(cluster),
	}
	for _, pool := range cluster.Pools {
		p.Pools[pool.Name] = admission.Pool{ControlPlane: pool.Has(config.RoleControlPlane), ByAddress: pool.Replacement == spec.ByAddress}
	}
	return p
}

// apiAddresses are the addresses at which clients look for the API in addition to the control planes' own. They are reserved: with
// a serving certificate for one of them, a kubelet could pass for the API server.
func apiAddresses(c config.Cluster) (all []netip.Addr) {
	for _, h := range append([]endpoint.Host{c.LoadBalancer.Host}, c.ExtraSANs...) {
		if h.Addr.IsValid() {
			all = append(all, h.Addr.Unmap())
		}
	}
	return all
}
