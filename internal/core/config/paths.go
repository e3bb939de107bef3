// SPDX-License-Identifier: Apache-2.0

package config

// Files on a node: kubeadm's layout, because every tool looks there.
const (
	PKIDir       = "/etc/kubernetes/pki"
	ManifestsDir = "/etc/kubernetes/manifests"

	AdminConf             = "/etc/kubernetes/admin.conf"
	SuperAdminConf        = "/etc/kubernetes/super-admin.conf"
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

	EtcdDir          = "/var/lib/etcd"
	ContainerdSocket = "/run/containerd/containerd.sock"
)

// Roles of a pool.
const (
	RoleControlPlane = "control-plane"
	RoleWorker       = "worker"
	RoleEtcd         = "etcd"
)
