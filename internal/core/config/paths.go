// SPDX-License-Identifier: Apache-2.0

package config

import "github.com/slipway-project/slipway/internal/core/spec"

// Files on a node: kubeadm's layout, because every tool looks there.
const (
	PKIDir       = "/etc/kubernetes/pki"
	ManifestsDir = "/etc/kubernetes/manifests"

	AdminConf             = "/etc/kubernetes/admin.conf"
	SuperAdminConf        = "/etc/kubernetes/super-admin.conf"
	ControlConf           = "/etc/kubernetes/control.conf" // what the control role may do between applies
	ControllerManagerConf = "/etc/kubernetes/controller-manager.conf"
	SchedulerConf         = "/etc/kubernetes/scheduler.conf"
	KubeletConf           = "/etc/kubernetes/kubelet.conf"
	KubeProxyConf         = "/etc/kubernetes/kube-proxy.conf"

	KubeletFile        = "/var/lib/kubelet/config.yaml"
	KubeProxyFile      = "/etc/kubernetes/kube-proxy.yaml"
	SchedulerFile      = "/etc/kubernetes/scheduler.yaml"
	AuditPolicyFile    = "/etc/kubernetes/audit-policy.yaml"
	EncryptionFile     = "/etc/kubernetes/encryption.yaml"
	AuthenticationFile = "/etc/kubernetes/authentication.yaml"
	AuditLog           = "/var/log/kubernetes/audit.log"
	ContainerdFile     = "/etc/containerd/config.toml"
	ResolvConfFile     = "/etc/kubernetes/resolv.conf" // for pods, where the machine has no upstream DNS

	EtcdDir          = "/var/lib/etcd"
	EtcdMark         = "/var/lib/slipway/state/etcd-created"  // see plan.DataGuard
	EtcdPermit       = "/var/lib/slipway/state/etcd-permit"   // environment of etcd's first start; etcd does not start without it
	EtcdVoter        = "/var/lib/slipway/state/etcd-voter"    // this machine's etcd is a voting member
	CreatePermit     = "/var/lib/slipway/state/create-permit" // see pki.Want.Permit
	RosterFile       = "/var/lib/slipway/state/roster.json"
	PodNetworkFile   = "/etc/kubernetes/pod-network.nft"
	SlipwayBinary    = "/opt/slipway/bin/slipway"
	KubeletDir       = "/var/lib/kubelet"
	ContainerdSocket = "/run/containerd/containerd.sock"
)

// Ports of the agents, on the machines' own addresses.
const (
	JoinPort  = 9440 // the join service of a control plane
	InitPort  = 9441 // the init service of a machine that belongs to no cluster
	StorePort = 9442 // a control plane serves its component store
)

// Key material under PKIDir: add ".crt" for the certificate, ".key" for the private key, ".pub" for a public key.
// Package pki has the table of what is in them.
const (
	ClusterCA          = PKIDir + "/ca"
	FrontProxyCA       = PKIDir + "/front-proxy-ca"
	EtcdCA             = PKIDir + "/etcd/ca"
	JoinCA             = PKIDir + "/join-ca"
	JoinServing        = PKIDir + "/join-server"
	ServiceAccount     = PKIDir + "/sa"
	APIServerServing   = PKIDir + "/apiserver"
	APIServerToKubelet = PKIDir + "/apiserver-kubelet-client"
	APIServerToEtcd    = PKIDir + "/apiserver-etcd-client"
	FrontProxyClient   = PKIDir + "/front-proxy-client"
	EtcdServing        = PKIDir + "/etcd/server"
	EtcdPeer           = PKIDir + "/etcd/peer"
	EtcdHealthcheck    = PKIDir + "/etcd/healthcheck-client"
	ControllerServing  = PKIDir + "/controller-manager"
	SchedulerServing   = PKIDir + "/scheduler"
)

// The roles of a pool.
const (
	RoleControlPlane = spec.RoleControlPlane
	RoleWorker       = spec.RoleWorker
	RoleEtcd         = spec.RoleEtcd
)

// What every machine reports of itself, for units: NAME=VALUE lines, and each fact as a file of its own.
const (
	FactsFile      = "/run/slipway/facts.env"
	FactsDirectory = "/run/slipway/facts"
)
