// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the cluster spec: its fields, their types, and the text of `slipway spec explain`. It has no logic.
//
// The same types serve from the YAML document to the plan: package spec decodes and checks them, package config fills in
// what the user left out, and prints them again. A field whose zero value is not allowed in a document is zero where the
// user did not set it. The tag scalar:"literal" keeps numbers as they are written: 1.40 is not 1.4.
//
// Read [Cluster] first. The shortest spec is
//
//	apiVersion: slipway.dev/v1alpha1
//	kind: Cluster
//	metadata: {name: dev}
package v1alpha1

import (
	_ "embed" // the source below
	"io/fs"
	"net/netip"
	"time"

	"github.com/slipway-project/slipway/internal/core/endpoint"
)

// APIVersion and Kind identify a document of this package.
const (
	APIVersion = "slipway.dev/v1alpha1"
	Kind       = "Cluster"
)

// Source is this file: its doc comments are the text of `slipway spec explain`.
//
//go:embed cluster.go
var Source []byte

// Cluster describes one Kubernetes cluster. Everything under spec has a default.
type Cluster struct {
	// Always slipway.dev/v1alpha1.
	APIVersion string `json:"apiVersion"`
	// Always Cluster.
	Kind string `json:"kind"`
	// Metadata names the cluster.
	Metadata Metadata `json:"metadata"`
	// Spec describes the cluster that you want.
	Spec Spec `json:"spec,omitempty"`
}

// Metadata names the cluster.
type Metadata struct {
	// Name of the cluster: a DNS label of at most 40 characters. It cannot be changed later.
	Name string `json:"name"`
}

// Spec describes the cluster that you want.
type Spec struct {
	// KubernetesVersion is a minor such as "1.36"; the patch comes from the release catalogue.
	// Default: the newest tested release.
	KubernetesVersion string `json:"kubernetesVersion,omitempty" scalar:"literal"`
	// Networking configures the pod and Service networks. Address ranges and names cannot be changed later.
	Networking Networking `json:"networking,omitempty"`
	// Pools of identical machines. Default: one pool "main" of one machine that is control plane and worker.
	Pools []Pool `json:"pools,omitempty"`
	// SSH is how `slipway apply` reaches the machines that pools list; a machine can override it. It is never stored in the cluster.
	SSH SSH `json:"ssh,omitempty"`
	// ControlPlane configures how the control plane runs and how clients reach it.
	ControlPlane ControlPlane `json:"controlPlane,omitempty"`
	// FeatureGates are passed to every Kubernetes component. Default: none.
	FeatureGates map[string]bool `json:"featureGates,omitempty"`
	// Components holds overrides; they are merged last.
	Components Components `json:"components,omitempty"`
	// Units are your own processes, placed on machines by rules and supervised like the components.
	Units []Unit `json:"units,omitempty"`
	// AddOns are applied once the API answers.
	AddOns []AddOn `json:"addOns,omitempty"`
	// OS configures how every machine's operating system is prepared.
	OS OS `json:"os,omitempty"`
	// Hooks are your own commands, run on the machines before or after a phase of their start.
	Hooks []Hook `json:"hooks,omitempty"`
	// StaticPods are pods that the machines' kubelets run without the API. They cannot refer to API objects.
	StaticPods []StaticPod `json:"staticPods,omitempty"`
	// FileAssets are your own files on the machines. They must not hold secrets: specs are stored as plain text.
	FileAssets []FileAsset `json:"fileAssets,omitempty"`
}

// Networking configures the pod and Service networks. Address ranges and names cannot be changed later.
type Networking struct {
	// PodCIDR is the address range of all pods. Default 10.244.0.0/16.
	PodCIDR netip.Prefix `json:"podCIDR,omitempty"`
	// NodePodPrefix is the prefix length of each node's pod CIDR. Default 24.
	NodePodPrefix int `json:"nodePodPrefix,omitempty"`
	// ServiceCIDR is the address range of Services. Default 10.96.0.0/16.
	ServiceCIDR netip.Prefix `json:"serviceCIDR,omitempty"`
	// ClusterDomain is the DNS suffix of Services. Default cluster.local.
	ClusterDomain string `json:"clusterDomain,omitempty"`
	// DNSAddress is the Service address of the cluster DNS. Default: the tenth address of serviceCIDR.
	DNSAddress netip.Addr `json:"dnsAddress,omitempty"`
	// MTU of pods' interfaces, 1280 to 65535. It can be changed later, for new pods. Default: that of the node's default route.
	MTU int `json:"mtu,omitempty"`
}

// Pool is a group of identical machines.
type Pool struct {
	// Name of the pool: a DNS label. Machines are called CLUSTER-NAME-0, CLUSTER-NAME-1, … unless they have names of their own.
	Name string `json:"name"`
	// Roles: control-plane, worker, etcd. A control plane also runs etcd unless some pool has the role etcd.
	// Default: control-plane and worker for the only pool, worker where there are several.
	Roles []string `json:"roles,omitempty"`
	// Count of machines. Default: the number of machines listed, or 1.
	Count int `json:"count,omitempty"`
	// Labels of the machines' Nodes.
	Labels map[string]string `json:"labels,omitempty"`
	// Taints of the machines' Nodes.
	// Default: node-role.kubernetes.io/control-plane:NoSchedule on a control plane that is not a worker.
	Taints []Taint `json:"taints,omitempty"`
	// Replacement is how a machine can replace another machine of this pool. Approved: an administrator runs slipway node approve.
	// ByAddress: a machine that connects from the address of an unreachable machine takes over its name without approval; use it for
	// workers with fixed addresses in a network that no unknown machine can join. Default Approved.
	Replacement string `json:"replacement,omitempty"`
	// Machines that exist already, for `slipway apply`.
	Machines []Machine `json:"machines,omitempty"`
	// MachineLabels are additional labels of single machines that are not listed under machines, by machine name:
	// {dev-main-0: {disk: ssd}}. A change moves the units that depend on it and restarts nothing else.
	MachineLabels map[string]map[string]string `json:"machineLabels,omitempty"`
}

// Taint repels pods that do not tolerate it.
type Taint struct {
	// Key that a pod's toleration names, such as example.org/only.
	Key string `json:"key"`
	// Value may be empty.
	Value string `json:"value,omitempty"`
	// Effect: NoSchedule, PreferNoSchedule or NoExecute.
	Effect string `json:"effect"`
}

// Machine is a machine that exists already.
type Machine struct {
	// Name of the machine and of its Node: a host name in lower case.
	Name string `json:"name"`
	// Address of the machine, at which the other machines reach it.
	Address netip.Addr `json:"address"`
	// Labels of this machine, in addition to its pool's. A change moves the units that depend on it and restarts nothing else.
	Labels map[string]string `json:"labels,omitempty"`
	// SSH is how to reach this machine where that differs from spec.ssh.
	SSH SSH `json:"ssh,omitempty"`
}

// SSH is how an operator reaches a machine. Only key authentication is supported.
type SSH struct {
	// User to log in as: root, or a user with password-less sudo. Default root.
	User string `json:"user,omitempty"`
	// Port of the machine's SSH server. Default 22.
	Port int `json:"port,omitempty"`
	// IdentityFile is a private key on the operator's computer; ~/ is the home directory. Default: the keys of the SSH agent,
	// then ~/.ssh/id_ed25519, ~/.ssh/id_ecdsa and ~/.ssh/id_rsa.
	IdentityFile string `json:"identityFile,omitempty"`
	// Jump is a host to connect through: HOST, USER@HOST, HOST:PORT or USER@HOST:PORT. Default: none.
	Jump endpoint.Jump `json:"jump,omitempty"`
	// HostKey is the only key that the machine's SSH server may have: a public key such as "ssh-ed25519 AAAA…", or its
	// fingerprint such as "SHA256:…". Default: the keys in ~/.ssh/known_hosts.
	HostKey string `json:"hostKey,omitempty"`
}

// ControlPlane configures how the control plane runs and how clients reach it.
type ControlPlane struct {
	// Form: HostUnits or StaticPods, for all control planes of the cluster. Default HostUnits.
	Form string `json:"form,omitempty"`
	// ExtraSANs are additional names and addresses in the API server's certificate.
	ExtraSANs []endpoint.Host `json:"extraSANs,omitempty"`
	// LoadBalancer is host:port of a load balancer in front of the API servers, for clients outside the cluster. Nodes use it only
	// when no API server answers, and nothing waits for it.
	LoadBalancer endpoint.Endpoint `json:"loadBalancer,omitempty"`
}

// Components holds the overrides of each component.
type Components struct {
	// Etcd stores the cluster's state.
	Etcd Component `json:"etcd,omitempty"`
	// APIServer is kube-apiserver.
	APIServer Component `json:"apiserver,omitempty"`
	// ControllerManager is kube-controller-manager.
	ControllerManager Component `json:"controllerManager,omitempty"`
	// Scheduler is kube-scheduler.
	Scheduler Component `json:"scheduler,omitempty"`
	// Kubelet runs the pods of each machine.
	Kubelet Component `json:"kubelet,omitempty"`
	// KubeProxy programs Services on each machine.
	KubeProxy Component `json:"kubeProxy,omitempty"`
	// Containerd runs the containers of each machine.
	Containerd Component `json:"containerd,omitempty"`
	// CoreDNS is the cluster DNS.
	CoreDNS CoreDNS `json:"coredns,omitempty"`
}

// Component is the override of one component.
type Component struct {
	// Flags without leading dashes. Values are text, numbers, booleans or lists; null removes a default flag.
	// ${node.name}, ${node.address} and ${node.podCIDR} are replaced by the node's own name, address and pod CIDR.
	Flags map[string]Values `json:"flags,omitempty" scalar:"literal"`
	// Config is merged into the component's configuration file (kubelet, kubeProxy, scheduler only); null removes a field.
	Config map[string]any `json:"config,omitempty"`
	// Env is the process environment in addition to the defaults.
	Env map[string]string `json:"env,omitempty" scalar:"literal"`
}

// Values of a flag: one, several for a flag that may be repeated, or none where null removes the flag. In YAML a single
// value needs no list.
type Values []string

// CoreDNS is the cluster DNS.
type CoreDNS struct {
	// Replicas. Default 1 on one node, otherwise 2.
	Replicas int `json:"replicas,omitempty"`
	// Corefile replaces the whole configuration. Default: cluster names, and /etc/resolv.conf for all others.
	Corefile string `json:"corefile,omitempty"`
}

// Unit is a process of your own. Its options may contain the systemd specifiers %n, %N, %p, %i and %%.
type Unit struct {
	// Name such as web, or db@ for a template that has instances.
	Name string `json:"name"`
	// Instances of a template: [main, events] makes db@main and db@events from db@.
	Instances []string `json:"instances,omitempty"`
	// Exec is the program and its arguments. The program is an absolute path on the machine; no shell is involved.
	Exec []string `json:"exec"`
	// Env is the process environment. The machine's facts (/run/slipway/facts.env) are added to it.
	Env map[string]string `json:"env,omitempty" scalar:"literal"`
	// Directory to run in. Default /.
	Directory string `json:"directory,omitempty"`
	// Ready is how to find out whether the unit works. Default: it counts as ready once it has been started.
	Ready UnitReady `json:"ready,omitempty"`
	// Facts that the machine must know before the unit starts, such as DEFAULT_IPV4. The unit waits for them.
	Facts []string `json:"facts,omitempty"`
	// StopTimeout is the time between SIGTERM and SIGKILL, such as 30s. Default 10s.
	StopTimeout time.Duration `json:"stopTimeout,omitempty"`
	// On: the machine has one of the values for each label: {disk: [ssd, nvme], zone: [a]}. Every machine also has the labels
	// kubernetes.io/hostname and slipway.dev/pool.
	On map[string][]string `json:"on,omitempty"`
	// With: the machine has all these units or components (etcd, kube-apiserver, kubelet, …). The unit starts after them.
	With []string `json:"with,omitempty"`
	// Conflicts are patterns (*, ? and [a-z]) of units and components that never run on the same machine. It is enough that one of
	// the two names the other. A pattern that begins with a wildcard matches units only.
	Conflicts []string `json:"conflicts,omitempty"`
	// Global: on every machine that the rules allow. Default false: on one of them.
	Global bool `json:"global,omitempty"`
	// Pin is the name of the only machine that the unit may run on.
	Pin string `json:"pin,omitempty"`
	// Replaces names units that make room: this unit takes the machine of the first that runs, and those units move elsewhere.
	Replaces []string `json:"replaces,omitempty"`
	// Placed is where the unit runs; Slipway writes it into a completed spec. The unit stays there while the rules allow.
	Placed []string `json:"placed,omitempty"`
}

// UnitReady is one check that tells whether a unit works.
type UnitReady struct {
	// HTTP is a URL such as http://127.0.0.1:8080/healthz that answers 200.
	HTTP string `json:"http,omitempty"`
	// TCP is host:port that accepts connections.
	TCP string `json:"tcp,omitempty"`
	// File is a path that exists and is not empty.
	File string `json:"file,omitempty"`
	// Notify: the process sends READY=1, as to systemd. Default false.
	Notify bool `json:"notify,omitempty"`
}

// AddOn is a set of Kubernetes objects.
type AddOn struct {
	// Name of the add-on: a DNS label.
	Name string `json:"name"`
	// Manifest is YAML text, one or more documents. It must not hold Secrets: create those with kubectl.
	Manifest string `json:"manifest"`
}

// OS configures how every machine's operating system is prepared. On a machine that shares its kernel with a host, as local machines
// do, kernel settings stay as they are: modules, swap, and sysctls that are not namespaced.
type OS struct {
	// Modules of the kernel, in addition to those that Kubernetes needs. A built-in module counts as loaded.
	// Default: br_netfilter, nf_tables and overlay, where the kernel has them.
	Modules []string `json:"modules,omitempty"`
	// Sysctls by name; null removes a default. A value that is already set is not written.
	// Default: net.ipv4.ip_forward=1, and bridged traffic passes the packet filter.
	Sysctls map[string]Values `json:"sysctls,omitempty" scalar:"literal"`
	// Packages by package manager (apt, dnf, zypper or apk); each machine installs those of its own. Default: none.
	Packages map[string][]string `json:"packages,omitempty"`
	// Groups to create. They are never removed. Default: none.
	Groups []Group `json:"groups,omitempty"`
	// Users to create. They have no password and are never removed. Default: none.
	Users []User `json:"users,omitempty"`
	// Directories to create. They are removed only while they are empty. Default: none.
	Directories []Directory `json:"directories,omitempty"`
	// Limits of user sessions and of systemd units, such as nofile or memlock: a number or unlimited. Default: the distribution's.
	Limits map[string]string `json:"limits,omitempty" scalar:"literal"`
	// TimeSync: require or ignore. With require, no certificate is issued before the clock is synchronised. Default ignore.
	TimeSync string `json:"timeSync,omitempty"`
	// Swap: "off", allow or require. Default allow.
	Swap string `json:"swap,omitempty"`
	// Hostname: keep the machine's, or node: set it to the name of the Node. Default keep.
	Hostname string `json:"hostname,omitempty"`
}

// Group of the operating system.
type Group struct {
	// Name of the group.
	Name string `json:"name"`
	// GID is its number. Default: the next free number.
	GID int `json:"gid,omitempty"`
}

// User of the operating system.
type User struct {
	// Name of the user.
	Name string `json:"name"`
	// UID is its number. Default: the next free number.
	UID int `json:"uid,omitempty"`
	// Group is its primary group. Default: a group with the user's name.
	Group string `json:"group,omitempty"`
	// Groups that it belongs to in addition. Default: none.
	Groups []string `json:"groups,omitempty"`
	// Home is its home directory, which is created if necessary. Default: none.
	Home string `json:"home,omitempty"`
	// Shell of its sessions. Default /usr/sbin/nologin.
	Shell string `json:"shell,omitempty"`
}

// Directory on the machines.
type Directory struct {
	// Path, absolute.
	Path string `json:"path"`
	// Mode in octal digits. Default 0755.
	Mode fs.FileMode `json:"mode,omitempty" scalar:"literal"`
	// Owner by name. Default root.
	Owner string `json:"owner,omitempty"`
	// Group by name. Default root.
	Group string `json:"group,omitempty"`
}

// Hook is a command that runs once on each machine, before or after a phase: prepare, files, runtime, etcd, control-plane, kubelet,
// kube-proxy or node-ready. A hook that fails is retried, and what depends on it waits.
type Hook struct {
	// Name of the hook: a DNS label.
	Name string `json:"name"`
	// Before is the phase that waits for the hook.
	Before string `json:"before,omitempty"`
	// After is the phase that the hook waits for; what comes after that phase waits for the hook.
	After string `json:"after,omitempty"`
	// Command is a program with its arguments; no shell is involved. ${node.name}, ${node.address} and ${node.podCIDR} are replaced by
	// the node's own. A changed command runs again.
	Command []string `json:"command"`
	// Roles of the machines that run the hook. Default: all.
	Roles []string `json:"roles,omitempty"`
	// Timeout of one run, such as 30s or 10m. Default 5m.
	Timeout time.Duration `json:"timeout,omitempty"`
	// EveryBoot: run it again after each boot. Default false.
	EveryBoot bool `json:"everyBoot,omitempty"`
}

// StaticPod is a pod that a kubelet runs without the API.
type StaticPod struct {
	// Name of its manifest in /etc/kubernetes/manifests: a DNS label that no component has.
	Name string `json:"name"`
	// Manifest is YAML text: one Pod.
	Manifest string `json:"manifest"`
	// Roles of the machines that run it. Default: all.
	Roles []string `json:"roles,omitempty"`
}

// FileAsset is a file on the machines. When it is removed from the spec, it is removed from the machines, unless it was changed there.
type FileAsset struct {
	// Path, absolute, in a directory that does not belong to Slipway.
	Path string `json:"path"`
	// Mode in octal digits. Default 0644.
	Mode fs.FileMode `json:"mode,omitempty" scalar:"literal"`
	// Content of the file, at most 256 KiB.
	Content string `json:"content"`
	// Roles of the machines that have it. Default: all.
	Roles []string `json:"roles,omitempty"`
}
