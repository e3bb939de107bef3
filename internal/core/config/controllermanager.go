// SPDX-License-Identifier: Apache-2.0

package config

import "strconv"

// controllerManager has every option of the NixOS module of 2019 (requirement R-20), with the right name of the key's flag.
func controllerManager(c Cluster) defaults {
	return defaults{env: smallHeap(), flags: withGates(c, append(delegation(ControllerManagerConf, ControllerServing), []setting{
		{"kubeconfig", ControllerManagerConf, std("")},
		{"bind-address", "127.0.0.1", std("")},
		{"secure-port", "10257", std("")},

		{"cluster-name", c.Name, from("metadata.name")},
		{"allocate-node-cidrs", "false", std("node ranges are assigned by the plan")},
		{"cluster-cidr", c.PodCIDR.String(), from("networking.podCIDR")},
		{"node-cidr-mask-size", strconv.Itoa(c.NodePodPrefix), from("networking.nodePodPrefix")},
		{"service-cluster-ip-range", c.ServiceCIDR.String(), from("networking.serviceCIDR")},

		leaderElect(c),
		{"leader-elect-lease-duration", "15s", std("")},
		{"leader-elect-renew-deadline", "10s", std("")},
		{"leader-elect-retry-period", "2s", std("")},

		{"root-ca-file", ClusterCA + ".crt", std("")},
		{"service-account-private-key-file", ServiceAccount + ".key", std("")},
		{"use-service-account-credentials", "true", std("each controller has its own rights")},

		// One pair per signer: what is signed for nobody's purpose (legacy-unknown) is not signed.
		{"cluster-signing-kubelet-client-cert-file", ClusterCA + ".crt", std("")},
		{"cluster-signing-kubelet-client-key-file", ClusterCA + ".key", std("")},
		{"cluster-signing-kubelet-serving-cert-file", ClusterCA + ".crt", std("")},
		{"cluster-signing-kubelet-serving-key-file", ClusterCA + ".key", std("")},
		{"cluster-signing-kube-apiserver-client-cert-file", ClusterCA + ".crt", std("")},
		{"cluster-signing-kube-apiserver-client-key-file", ClusterCA + ".key", std("")},
		{"cluster-signing-duration", "720h0m0s", std("kubelets renew in time; Kubernetes' own year is long for a node that was taken out")},

		{"controllers", "*", std("")},
		{"kube-api-qps", "100", std("Kubernetes' own 20 costs about 5 s at start")},
		{"kube-api-burst", "200", std("Kubernetes' own 30 costs about 5 s at start")},
		{"node-monitor-period", "5s", std("")},
		{"node-monitor-grace-period", "50s", std("")},
		{"terminated-pod-gc-threshold", "1000", std("Kubernetes' own 12500 fills etcd")},
		{"profiling", "false", std("")},
		{"v", "0", std("")},
	}...))}
}
