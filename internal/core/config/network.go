// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/slipway-project/slipway/internal/core/spec"
)

func (m *maker) network() {
	s, c := m.spec.Networking, m.out
	c.PodCIDR = choose(m, "networking.podCIDR", s.PodCIDR, netip.MustParsePrefix(spec.DefaultPodCIDR), std(""))
	c.NodePodPrefix = choose(m, "networking.nodePodPrefix", s.NodePodPrefix, spec.DefaultNodePodPrefix, std(""))
	c.ServiceCIDR = choose(m, "networking.serviceCIDR", s.ServiceCIDR, netip.MustParsePrefix(spec.DefaultServiceCIDR), std(""))
	c.ClusterDomain = choose(m, "networking.clusterDomain", s.ClusterDomain, spec.DefaultClusterDomain, std(""))
	c.DNSAddress = choose(m, "networking.dnsAddress", s.DNSAddress, spec.Nth(c.ServiceCIDR, spec.DNSIndex), from("networking.serviceCIDR"))
}

// etcdServers is the member beside the API server, or the machines of the etcd pools.
func (m *maker) etcdServers() setting {
	const port = ":2379"
	members := m.out.EtcdMembers()
	if len(members) == 0 || m.out.etcdOnControlPlane() {
		return setting{"etcd-servers", "https://127.0.0.1" + port, from("etcd runs beside the API server")}
	}
	var urls []string
	for _, n := range members {
		urls = append(urls, "https://"+n.Address.String()+port)
	}
	return setting{"etcd-servers", strings.Join(urls, ","), from("machines of the pools with the role etcd")}
}

// Share is the n-th part of the pod range, which one node has.
func (c Cluster) Share(n int) (netip.Prefix, error) {
	bits := c.NodePodPrefix - c.PodCIDR.Bits()
	if bits < 0 || n < 0 || bits < 31 && n >= 1<<bits {
		return netip.Prefix{}, fmt.Errorf("assign pod range to node %d: %s holds %d ranges of /%d", n, c.PodCIDR, 1<<max(bits, 0), c.NodePodPrefix)
	}
	start := spec.Nth(c.PodCIDR, n<<(32-c.NodePodPrefix))
	return netip.PrefixFrom(start, c.NodePodPrefix), nil
}
