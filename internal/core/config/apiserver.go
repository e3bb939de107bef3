// SPDX-License-Identifier: Apache-2.0

package config

// apiserver: no anonymous access but health paths, Secrets encrypted at rest, every request audited by policy.
func apiserver(c Cluster, etcdServers setting) defaults {
	return defaults{env: apiHeap(), flags: withGates(c, []setting{
		{"advertise-address", "${node.address}", from("the node's address")},
		{"bind-address", "0.0.0.0", std("")},
		{"secure-port", "6443", std("")},
		{"tls-cert-file", APIServerServing + ".crt", std("")},
		{"tls-private-key-file", APIServerServing + ".key", std("")},
		{"tls-min-version", tlsMin, std("")},
		{"tls-cipher-suites", cipherSuites(), std("")},

		etcdServers,
		{"etcd-cafile", EtcdCA + ".crt", std("")},
		{"etcd-certfile", APIServerToEtcd + ".crt", std("")},
		{"etcd-keyfile", APIServerToEtcd + ".key", std("")},
		{"etcd-compaction-interval", "5m0s", std("")},
		{"encryption-provider-config", EncryptionFile, std("Secrets are unreadable in etcd")},

		{"client-ca-file", ClusterCA + ".crt", std("")},
		{"authentication-config", AuthenticationFile, std("anonymous requests reach /livez, /readyz and /healthz only")},
		{"enable-bootstrap-token-auth", "false", std("machines join by ticket")},
		{"authorization-mode", "Node,RBAC", std("")},
		{"enable-admission-plugins", "NodeRestriction", std("besides those that are on by default")},
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
		{"service-account-extend-token-expiration", "false", std("tokens end when they say")},

		{"kubelet-certificate-authority", ClusterCA + ".crt", std("")},
		{"kubelet-client-certificate", APIServerToKubelet + ".crt", std("")},
		{"kubelet-client-key", APIServerToKubelet + ".key", std("")},
		{"kubelet-preferred-address-types", "InternalIP", std("host names need a DNS that nobody promised")},

		{"service-cluster-ip-range", c.ServiceCIDR.String(), from("networking.serviceCIDR")},
		{"service-node-port-range", "30000-32767", std("")},
		{"allow-privileged", "true", std("network and storage drivers need it; restrict with Pod Security")},

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

// apiHeap: the start of a cluster is the start of its API server, so it pays less for a small heap than others do. Measured
// with make bench: 50 costs 0.7 CPU seconds of the start against 100, and saves 22 MiB.
func apiHeap() []setting {
	return []setting{{"GOGC", "75", std("a smaller heap for a little more CPU")}}
}
