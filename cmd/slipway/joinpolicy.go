// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net/netip"

	"github.com/slipway-project/slipway/internal/control/members"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/endpoint"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// policyOf is what the spec says of machines that join.
func policyOf(cluster config.Cluster, release catalog.Release) admission.Policy {
	p := admission.Policy{
		Cluster: cluster.Name, APIServer: release.Kubernetes, PodCIDR: cluster.PodCIDR, NodePodPrefix: cluster.NodePodPrefix,
		ServiceCIDR: cluster.ServiceCIDR, Pools: map[string]admission.Pool{}, Reserved: apiAddresses(cluster),
	}
	for _, pool := range cluster.Pools {
		p.Pools[pool.Name] = admission.Pool{ControlPlane: pool.Has(config.RoleControlPlane), ByAddress: pool.Replacement == spec.ByAddress}
	}
	return p
}

// apiAddresses are where clients look for the API beside the control planes' own: a kubelet's serving certificate for one of them
// would pass for the API server's.
func apiAddresses(c config.Cluster) (all []netip.Addr) {
	for _, h := range append([]endpoint.Host{c.LoadBalancer.Host}, c.ExtraSANs...) {
		if h.Addr.IsValid() {
			all = append(all, h.Addr.Unmap())
		}
	}
	return all
}

// voters are the control planes whose etcd counts.
func voters(m *members.Manager) func(ctx context.Context) ([]string, error) {
	return func(ctx context.Context) ([]string, error) {
		all, err := m.Status(ctx)
		if err != nil {
			return nil, err
		}
		var names []string
		for name, s := range all {
			if s.Member == "voter" && !s.Unknown {
				names = append(names, name)
			}
		}
		return names, nil
	}
}
