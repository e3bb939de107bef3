// SPDX-License-Identifier: Apache-2.0

package config

import "github.com/slipway-project/slipway/internal/core/spec"

func kubeProxy(c Cluster) defaults {
	const noSysctl = "0 leaves the sysctl alone, which a network namespace may not write"
	return defaults{
		flags: []setting{{"config", KubeProxyFile, std("")}},
		config: gateFields(c, []field{
			{"apiVersion", "kubeproxy.config.k8s.io/v1alpha1", std("")},
			{"kind", "KubeProxyConfiguration", std("")},
			{"mode", "nftables", std("")},
			{"clientConnection.kubeconfig", KubeProxyConf, std("")},
			{"clientConnection.qps", 50, std("")},
			{"clientConnection.burst", 100, std("")},
			{"bindAddress", "0.0.0.0", std("")},
			{"hostnameOverride", "${node.name}", from("the node's name")},
			{"clusterCIDR", c.PodCIDR.String(), from("networking.podCIDR")},
			{"detectLocalMode", "ClusterCIDR", std("")},
			{"metricsBindAddress", "127.0.0.1:10249", std("")},
			{"healthzBindAddress", "127.0.0.1:10256", std("load balancers that ask each node need 0.0.0.0:10256")},
			{"enableProfiling", false, std("")},
			proxyOOM(c),
			{"configSyncPeriod", "15m0s", std("")},
			{"nftables.minSyncPeriod", "100ms", std("Kubernetes' own 1s delays a new Service by up to as much")},
			{"nftables.syncPeriod", "30s", std("")},
			{"nftables.masqueradeBit", 14, std("")},
			{"nftables.masqueradeAll", false, std("")},
			{"conntrack.maxPerCore", 0, std(noSysctl)},
			{"conntrack.min", 0, std(noSysctl)},
			{"conntrack.tcpEstablishedTimeout", "0s", std(noSysctl)},
			{"conntrack.tcpCloseWaitTimeout", "0s", std(noSysctl)},
		}),
	}
}

// proxyOOM in a pod is what the kubelet gives it: to lower it further takes a right that the pod does not have.
func proxyOOM(c Cluster) field {
	if c.Form == spec.StaticPods {
		return field{"oomScoreAdj", -997, from("controlPlane.form; 0 on a machine that may not lower it")}
	}
	return field{"oomScoreAdj", oomScore, std("0 on a machine that may not lower it")}
}
