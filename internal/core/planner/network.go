// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"fmt"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/spec"
)

const balancerUnit = "api-balancer"

// balancer is a worker's way to the API: a process of its own, so that it lives on when the agent dies.
func (n *node) balancer() {
	address := strings.TrimPrefix(n.apiURL(), "https://")
	n.Add(plan.Unit{
		Name: balancerUnit,
		Args: []string{
			config.SlipwayBinary, balancerUnit, "--listen=" + address, "--roster=" + config.RosterFile,
			"--ca=" + config.JoinCA + ".crt", "--cluster-ca=" + config.ClusterCA + ".crt",
		},
		Ready:    plan.Probe{Kind: plan.ProbeNotify},
		OOMScore: -997,
	}, n.certs["ca"])
}

// podNetwork lets pods out of the cluster under their node's address. Between pods and nodes nothing is translated. CNI's own
// masquerading would hide pods from pods of other nodes.
func (n *node) podNetwork() {
	source := "ip saddr " + n.cfg.PodCIDR.String()
	rules := n.Add(plan.File{Path: config.PodNetworkFile, Mode: 0o600, Content: fmt.Sprintf(`# Written by slipway.
table ip slipway {}
delete table ip slipway
table ip slipway {
  chain postrouting {
    type nat hook postrouting priority srcnat; policy accept;
    %s ip daddr != { %s, 224.0.0.0/4 } counter masquerade
  }
%s}
`, source, n.cfg.Cluster.PodCIDR, n.agentsApart(source))}, n.dirs["/etc/kubernetes"])
	n.podRules = n.Add(plan.Unit{
		Name:    "pod-network",
		Oneshot: true,
		Args:    []string{"/usr/bin/env", "nft", "-f", config.PodNetworkFile},
		Inputs:  []plan.Ref{rules},
		Ready:   plan.Probe{Kind: plan.ProbeExec, Args: []string{"/usr/bin/env", "nft", "list", "table", "ip", "slipway"}, Contains: source},
	}, rules, n.osModules)
}

// agentsApart keeps pods from the agents of other machines where an address is a right: to those a pod would be its node.
func (n *node) agentsApart(source string) string {
	if !slices.ContainsFunc(n.cfg.Cluster.Pools, func(p config.Pool) bool { return p.Replacement == spec.ByAddress }) {
		return ""
	}
	return fmt.Sprintf(`  chain forward {
    type filter hook forward priority filter; policy accept;
    %s tcp dport { %d, %d, %d } counter reject with tcp reset
  }
`, source, config.JoinPort, config.InitPort, config.StorePort)
}

// EtcdPermit is the content of the permit with which a control plane's etcd begins a cluster.
func EtcdPermit(cfg config.Node) []byte {
	peer := flag(cfg.Cluster.Etcd, "initial-advertise-peer-urls", "https://"+cfg.Facts.Address.String()+":2380")
	name := flag(cfg.Cluster.Etcd, "name", cfg.Name)
	return []byte("ETCD_INITIAL_CLUSTER=" + name + "=" + peer + "\nETCD_INITIAL_CLUSTER_STATE=new\n")
}
