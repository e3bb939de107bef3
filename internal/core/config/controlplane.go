// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// apiserver allows anonymous access to health paths only, encrypts Secrets at rest, and audits every request by policy.
func apiserver(c Cluster) defaults {
	return defaults{env: idleHeap(), flags: withGates(c, []setting{
		{"advertise-address", "${node.address}", from("the node's address")},
		{"bind-address", "0.0.0.0", std("")},
		{"secure-port", "6443", std("")},
		{"tls-cert-file", APIServerServing + ".crt", std("")},
		{"tls-private-key-file", APIServerServing + ".key", std("")},
		{"tls-min-version", tlsMin, std("")},
		{"tls-cipher-suites", cipherSuites(), std("")},

		etcdServers(c),
		{"etcd-cafile", EtcdCA + ".crt", std("")},
		{"etcd-certfile", APIServerToEtcd + ".crt", std("")},
		{"etcd-keyfile", APIServerToEtcd + ".key", std("")},
		{"etcd-compaction-interval", "5m0s", std("")},
		{"encryption-provider-config", EncryptionFile, std("Secrets are unreadable in etcd")},

		{"client-ca-file", ClusterCA + ".crt", std("")},
		{"authentication-config", AuthenticationFile, std("anonymous requests reach /livez, /readyz and /healthz only")},
		{"enable-bootstrap-token-auth", "false", std("machines join with a ticket")},
		{"authorization-mode", "Node,RBAC", std("")},
		{"enable-admission-plugins", "NodeRestriction", std("in addition to the plugins that are on by default")},
		{"requestheader-client-ca-file", FrontProxyCA + ".crt", std("")},
		{"requestheader-allowed-names", frontProxyName, std("")},
		{"requestheader-username-headers", "X-Remote-User", std("")},
		{"requestheader-group-headers", "X-Remote-Group", std("")},
		{"requestheader-extra-headers-prefix", "X-Remote-Extra-", std("")},
		{"proxy-client-cert-file", FrontProxyClient + ".crt", std("")},
		{"proxy-client-key-file", FrontProxyClient + ".key", std("")},

		{"service-account-issuer", "https://kubernetes.default.svc." + c.ClusterDomain, from("networking.clusterDomain")},
		{"service-account-key-file", ServiceAccount + ".pub", std("")},
		{"service-account-signing-key-file", ServiceAccount + ".key", std("")},
		{"service-account-extend-token-expiration", "false", std("tokens expire when they say")},

		{"kubelet-certificate-authority", ClusterCA + ".crt", std("")},
		{"kubelet-client-certificate", APIServerToKubelet + ".crt", std("")},
		{"kubelet-client-key", APIServerToKubelet + ".key", std("")},
		{"kubelet-preferred-address-types", "InternalIP", std("host names need DNS records that may not exist")},

		{"service-cluster-ip-range", c.ServiceCIDR.String(), from("networking.serviceCIDR")},
		{"service-node-port-range", "30000-32767", std("")},
		{"allow-privileged", "true", std("network and storage drivers need it; restrict pods with Pod Security")},

		{"audit-policy-file", AuditPolicyFile, std("")},
		{"audit-log-path", AuditLog, std("")},
		{"audit-log-maxage", "30", std("days")},
		{"audit-log-maxbackup", "10", std("files")},
		{"audit-log-maxsize", "100", std("MB")},

		{"event-ttl", "1h0m0s", std("")},
		{"request-timeout", "1m0s", std("")},
		{"profiling", "false", std("")},
		{"v", "0", std("")},
	})}
}

// controllerManager has every option of the NixOS module of 2019 (requirement R-20), with the correct name of the key's flag.
func controllerManager(c Cluster) defaults {
	return defaults{env: idleHeap(), flags: withGates(c, append(delegation(ControllerManagerConf, ControllerServing), []setting{
		{"kubeconfig", ControllerManagerConf, std("")},
		{"bind-address", "127.0.0.1", std("")},
		{"secure-port", "10257", std("")},

		{"cluster-name", c.Name, from("metadata.name")},
		{"allocate-node-cidrs", "false", std("the plan assigns each node's pod CIDR")},
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

		// One pair per signer: the signer legacy-unknown has none, so it signs nothing.
		{"cluster-signing-kubelet-client-cert-file", ClusterCA + ".crt", std("")},
		{"cluster-signing-kubelet-client-key-file", ClusterCA + ".key", std("")},
		{"cluster-signing-kubelet-serving-cert-file", ClusterCA + ".crt", std("")},
		{"cluster-signing-kubelet-serving-key-file", ClusterCA + ".key", std("")},
		{"cluster-signing-kube-apiserver-client-cert-file", ClusterCA + ".crt", std("")},
		{"cluster-signing-kube-apiserver-client-key-file", ClusterCA + ".key", std("")},
		{"cluster-signing-duration", "720h0m0s", std("kubelets renew in time; Kubernetes' own year is long for a node that was removed")},

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

// scheduler has flags for how it serves and a file for how it schedules.
func scheduler(c Cluster) defaults {
	elect := leaderElect(c)
	return defaults{
		env: idleHeap(),
		flags: withGates(c, append(delegation(SchedulerConf, SchedulerServing), []setting{
			{"config", SchedulerFile, std("")},
			{"bind-address", "127.0.0.1", std("")},
			{"secure-port", "10259", std("")},
			{"v", "0", std("")},
		}...)),
		config: []field{
			{"apiVersion", "kubescheduler.config.k8s.io/v1", std("")},
			{"kind", "KubeSchedulerConfiguration", std("")},
			{"clientConnection.kubeconfig", SchedulerConf, std("")},
			{"clientConnection.qps", 100, std("")},
			{"clientConnection.burst", 200, std("")},
			{"leaderElection.leaderElect", elect.value == "true", elect.origin},
			{"enableProfiling", false, std("")},
			{"enableContentionProfiling", false, std("")},
		},
	}
}

// etcd 3.6. Whether it bootstraps a cluster or joins one is not configuration: the permit decides (see [EtcdPermit]).
// Heartbeat and election timeout are listed because slow disks need other values.
func etcd(c Cluster) defaults {
	const peer = "https://${node.address}:2380"
	return defaults{env: smallHeap(), flags: []setting{
		{"name", "${node.name}", from("the node's name")},
		{"data-dir", EtcdDir, std("")},
		{"listen-client-urls", "https://127.0.0.1:2379,https://${node.address}:2379", from("the node's address")},
		{"advertise-client-urls", "https://${node.address}:2379", from("the node's address")},
		{"listen-peer-urls", peer, from("the node's address")},
		{"initial-advertise-peer-urls", peer, from("the node's address")},
		{"initial-cluster-token", c.Name, from("metadata.name")},
		{"cert-file", EtcdServing + ".crt", std("")},
		{"key-file", EtcdServing + ".key", std("")},
		{"client-cert-auth", "true", std("")},
		{"trusted-ca-file", EtcdCA + ".crt", std("")},
		{"peer-cert-file", EtcdPeer + ".crt", std("")},
		{"peer-key-file", EtcdPeer + ".key", std("")},
		{"peer-client-cert-auth", "true", std("")},
		{"peer-trusted-ca-file", EtcdCA + ".crt", std("")},
		{"cipher-suites", cipherSuites(), std("")},
		{"tls-min-version", "TLS1.2", std("")},
		{"listen-metrics-urls", "http://127.0.0.1:2381", std("health and metrics without a certificate, on loopback only")},
		{"auto-compaction-mode", "periodic", std("")},
		{"auto-compaction-retention", "0", std("the API server compacts: etcd-compaction-interval")},
		{"quota-backend-bytes", "2147483648", std("2 GiB")},
		{"snapshot-count", "10000", std("")},
		{"max-wals", "5", std("")},
		{"heartbeat-interval", "100", std("milliseconds; the same for any number of members, so that a new member restarts nothing")},
		{"election-timeout", "1000", std("milliseconds; a single member waits half of it at its start")},
		{"strict-reconfig-check", "true", std("")},
		{"feature-gates", "InitialCorruptCheck=true", std("a damaged member must not serve, as with kubeadm")},
		{"watch-progress-notify-interval", "5s", std("consistent reads from the watch cache, as with kubeadm")},
		{"log-level", "warn", std("")},
		{"log-outputs", "stderr", std("")},
	}}
}

const (
	tlsMin         = "VersionTLS12"
	frontProxyName = "front-proxy-client" // common name of the certificate FrontProxyClient
)

// suites are the TLS 1.2 cipher suites with forward secrecy and authenticated encryption. Those of TLS 1.3 cannot be chosen.
func suites() []string {
	return []string{
		"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
		"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
	}
}

func cipherSuites() string { return strings.Join(suites(), ",") }

// delegation is how the controller-manager and the scheduler serve, and delegate authentication and authorization to the
// API server.
func delegation(kubeconfig, serving string) []setting {
	return []setting{
		{"authentication-kubeconfig", kubeconfig, std("")},
		{"authorization-kubeconfig", kubeconfig, std("")},
		{"authentication-skip-lookup", "true", std("the CA files are configured, so nothing is looked up at start")},
		{"client-ca-file", ClusterCA + ".crt", std("")},
		{"requestheader-client-ca-file", FrontProxyCA + ".crt", std("")},
		{"requestheader-allowed-names", frontProxyName, std("")},
		{"tls-cert-file", serving + ".crt", std("otherwise it makes an RSA key at each start")},
		{"tls-private-key-file", serving + ".key", std("")},
		{"tls-min-version", tlsMin, std("")},
		{"tls-cipher-suites", cipherSuites(), std("")},
	}
}

// leaderElect: with a single control plane, leader election costs start time and prevents nothing.
func leaderElect(c Cluster) setting {
	if len(c.ControlPlanes()) > 1 {
		return setting{"leader-elect", "true", from("several control planes")}
	}
	return setting{"leader-elect", "false", from("a single control plane")}
}

// smallHeap is for components whose heap is mostly garbage from their start and which no start waits for.
func smallHeap() []setting {
	return []setting{{"GOGC", "50", std("a smaller heap for a little more CPU")}}
}

// idleHeap is smallHeap for the components of the program kube, which applies it half a minute after the start: GOGC=50 from the
// start costs the API server 0.7 CPU seconds while the cluster waits for it. A GOGC in the spec takes precedence.
func idleHeap() []setting {
	return []setting{{"SLIPWAY_IDLE_GOGC", "50", std("a smaller heap once the start is over")}}
}

// etcdServers is the member on the same machine, or the machines of the etcd pools.
func etcdServers(c Cluster) setting {
	const port = ":2379"
	members := c.EtcdMembers()
	apart := slices.ContainsFunc(c.Pools, func(p Pool) bool { return p.Has(RoleControlPlane) && !c.RunsEtcd(p) })
	if len(members) == 0 || !apart {
		return setting{"etcd-servers", "https://127.0.0.1" + port, from("etcd runs next to the API server")}
	}
	var urls []string
	for _, n := range members {
		urls = append(urls, "https://"+n.Address.String()+port)
	}
	return setting{"etcd-servers", strings.Join(urls, ","), from("machines of the pools with the role etcd")}
}

// withGates adds spec.featureGates to a program's flags.
func withGates(c Cluster, flags []setting) []setting {
	if len(c.FeatureGates) == 0 {
		return flags
	}
	var gates []string
	for _, name := range slices.Sorted(maps.Keys(c.FeatureGates)) {
		gates = append(gates, name+"="+strconv.FormatBool(c.FeatureGates[name]))
	}
	return append(flags, setting{"feature-gates", strings.Join(gates, ","), from("featureGates")})
}
