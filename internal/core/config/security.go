// SPDX-License-Identifier: Apache-2.0

package config

import "strings"

const (
	tlsMin         = "VersionTLS12"
	frontProxyName = "front-proxy-client" // common name of the certificate FrontProxyClient
)

// suites are the TLS 1.2 suites with forward secrecy and authenticated encryption; those of TLS 1.3 cannot be chosen.
func suites() []string {
	return []string{
		"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
		"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
	}
}

func cipherSuites() string { return strings.Join(suites(), ",") }

// delegation is how the controller-manager and the scheduler serve, and ask the API server who may read from them.
func delegation(kubeconfig, serving string) []setting {
	return []setting{
		{"authentication-kubeconfig", kubeconfig, std("")},
		{"authorization-kubeconfig", kubeconfig, std("")},
		{"authentication-skip-lookup", "true", std("the CA files are given, so nothing is looked up at start")},
		{"client-ca-file", ClusterCA + ".crt", std("")},
		{"requestheader-client-ca-file", FrontProxyCA + ".crt", std("")},
		{"requestheader-allowed-names", frontProxyName, std("")},
		{"tls-cert-file", serving + ".crt", std("otherwise it makes an RSA key at each start")},
		{"tls-private-key-file", serving + ".key", std("")},
		{"tls-min-version", tlsMin, std("")},
		{"tls-cipher-suites", cipherSuites(), std("")},
	}
}

// leaderElect: a lease costs a single control plane start time and saves it from nothing.
func leaderElect(c Cluster) setting {
	if len(c.ControlPlanes()) > 1 {
		return setting{"leader-elect", "true", from("several control planes")}
	}
	return setting{"leader-elect", "false", from("a single control plane")}
}
