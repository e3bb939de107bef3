// SPDX-License-Identifier: Apache-2.0

package config

// etcd 3.6. Whether it begins a cluster or joins one is no configuration: the permit says so (see [EtcdPermit]). Heartbeats stand here because they are what one tunes on slow disks.
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
		{"heartbeat-interval", "100", std("milliseconds; the same for any number of members, so that growing restarts nothing")},
		{"election-timeout", "1000", std("milliseconds; a single member waits out half of it at its start")},
		{"strict-reconfig-check", "true", std("")},
		{"feature-gates", "InitialCorruptCheck=true", std("a damaged member must not serve, as with kubeadm")},
		{"watch-progress-notify-interval", "5s", std("consistent reads from the watch cache, as with kubeadm")},
		{"log-level", "warn", std("")},
		{"log-outputs", "stderr", std("")},
	}}
}
