// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/netip"
	"time"
)

// Names of the CAs. There are four trust domains with one signer each: a kubelet's certificate does not give access to etcd.
const (
	ClusterCA    = "ca"
	FrontProxyCA = "front-proxy-ca"
	EtcdCA       = "etcd-ca"
	JoinCA       = "join-ca" // signs the join services and the roster; its pin is the cluster's identity
)

// Params are the inputs of the certificate table.
type Params struct {
	Dir        string // directory of the files, with kubeadm's layout
	Cluster    string // cluster name, for the CAs' common names
	Node       string
	Address    netip.Addr // the node's
	ServiceIP  netip.Addr // first address of the service CIDR: the "kubernetes" Service
	Domain     string     // cluster domain
	ExtraNames []string   // additional DNS names of the API server
	ExtraAddrs []netip.Addr
	Permit     string // see [Want.Permit]
	CALife     time.Duration
	LeafLife   time.Duration
}

// ControlPlane returns the certificate table of a node that runs the control plane, CAs first.
func ControlPlane(p Params) []Want {
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	apiNames := append([]string{
		p.Node, "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + p.Domain,
	}, p.ExtraNames...)
	apiAddrs := append([]netip.Addr{p.ServiceIP, p.Address, loopback}, p.ExtraAddrs...)
	both := []Usage{ServerAuth, ClientAuth}
	etcdAddrs := []netip.Addr{loopback, p.Address}
	etcdNames := []string{p.Node, "localhost"}

	return []Want{
		p.ca(ClusterCA, "ca", "kubernetes"),
		p.ca(FrontProxyCA, "front-proxy-ca", "front-proxy"),
		p.ca(EtcdCA, "etcd/ca", "etcd"),
		p.ca(JoinCA, "join-ca", "join"),
		{Name: "service-account", Kind: KeyPair, CertPath: p.Dir + "/sa.pub", KeyPath: p.Dir + "/sa.key", Permit: p.Permit},
		{Name: "encryption-key", Kind: Secret, KeyPath: p.Dir + "/encryption.key", Permit: p.Permit},

		p.leaf("apiserver", ClusterCA, "apiserver", "kube-apiserver", nil, []Usage{ServerAuth}, apiNames, apiAddrs),
		p.client("apiserver-kubelet-client", ClusterCA, "apiserver-kubelet-client", "kube-apiserver-kubelet-client", KubeletAPIGroup),
		p.client("front-proxy-client", FrontProxyCA, "front-proxy-client", "front-proxy-client", ""),
		p.client("apiserver-etcd-client", EtcdCA, "apiserver-etcd-client", "kube-apiserver-etcd-client", ""),
		p.leaf("etcd-server", EtcdCA, "etcd/server", p.Node, nil, both, etcdNames, etcdAddrs),
		p.leaf("etcd-peer", EtcdCA, "etcd/peer", p.Node, nil, both, etcdNames, etcdAddrs),
		p.client("etcd-healthcheck-client", EtcdCA, "etcd/healthcheck-client", "kube-etcd-healthcheck-client", ""),

		p.leaf("join-server", JoinCA, "join-server", p.Node, nil, []Usage{ServerAuth}, etcdNames, etcdAddrs),

		p.leaf("controller-manager-server", ClusterCA, "controller-manager", "kube-controller-manager", nil,
			[]Usage{ServerAuth}, []string{p.Node, "localhost"}, etcdAddrs),
		p.leaf("scheduler-server", ClusterCA, "scheduler", "kube-scheduler", nil,
			[]Usage{ServerAuth}, []string{p.Node, "localhost"}, etcdAddrs),

		p.client("admin", ClusterCA, "admin", "kubernetes-admin", AdminGroup),
		p.client("super-admin", ClusterCA, "super-admin", "kubernetes-super-admin", "system:masters"),
		p.client("control", ClusterCA, "control", "slipway-control", ControlGroup),
		p.client("controller-manager", ClusterCA, "controller-manager-client", "system:kube-controller-manager", ""),
		p.client("scheduler", ClusterCA, "scheduler-client", "system:kube-scheduler", ""),
	}
}

// Worker returns the certificate table of every node: the client certificates of its kubelet and its kube-proxy.
func Worker(p Params) []Want {
	return []Want{
		p.client("kubelet", ClusterCA, "kubelet-client", "system:node:"+p.Node, "system:nodes"),
		p.client("kube-proxy", ClusterCA, "kube-proxy-client", "system:kube-proxy", ""),
	}
}

// Groups that Slipway's own bindings name (package objects).
const (
	AdminGroup      = "slipway:cluster-admins"
	KubeletAPIGroup = "slipway:kubelet-api"
	ControlGroup    = "slipway:control"
)

func (p Params) ca(name, file, cn string) Want {
	return Want{
		Name: name, Kind: CA, CommonName: p.Cluster + " " + cn, Lifetime: p.CALife,
		CertPath: p.Dir + "/" + file + ".crt", KeyPath: p.Dir + "/" + file + ".key", Permit: p.Permit,
	}
}

func (p Params) client(name, signer, file, cn, org string) Want {
	var orgs []string
	if org != "" {
		orgs = []string{org}
	}
	return p.leaf(name, signer, file, cn, orgs, []Usage{ClientAuth}, nil, nil)
}

func (p Params) leaf(name, signer, file, cn string, orgs []string, usages []Usage, names []string, addrs []netip.Addr) Want {
	caFile := map[string]string{ClusterCA: "ca", FrontProxyCA: "front-proxy-ca", EtcdCA: "etcd/ca", JoinCA: "join-ca"}[signer]
	return Want{
		Name: name, Kind: Leaf, Signer: signer, CommonName: cn, Organizations: orgs, Usages: usages,
		DNSNames: names, Addresses: addrs, Lifetime: p.LeafLife,
		CertPath: p.Dir + "/" + file + ".crt", KeyPath: p.Dir + "/" + file + ".key",
		SignerCert: p.Dir + "/" + caFile + ".crt", SignerKey: p.Dir + "/" + caFile + ".key",
	}
}

// Certificate parses the first PEM block of a file, which must be a certificate. path is for the error only.
func Certificate(path string, text []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, fmt.Errorf("read certificate %s: no PEM certificate in it", path)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read certificate %s: %w", path, err)
	}
	return cert, nil
}

// ClockError reports that a certificate was not signed because a clock is wrong: it would not be valid for its users.
type ClockError struct{ Text string }

func (e *ClockError) Error() string { return e.Text }
