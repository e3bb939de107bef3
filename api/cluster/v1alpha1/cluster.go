// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the cluster spec as users write it: YAML tags and the text of `slipway spec explain`, no logic.
// The tag scalar:"literal" keeps numbers as they are written: 1.40 is not 1.4. Read [Cluster] first. The shortest spec is
//
//	apiVersion: slipway.dev/v1alpha1
//	kind: Cluster
//	metadata: {name: dev}
package v1alpha1

// APIVersion and Kind identify a document of this package.
const (
	APIVersion = "slipway.dev/v1alpha1"
	Kind       = "Cluster"
)

// Cluster describes one Kubernetes cluster. Everything under spec has a default.
type Cluster struct {
	// Always slipway.dev/v1alpha1.
	APIVersion string `json:"apiVersion"`
	// Always Cluster.
	Kind string `json:"kind"`
	// Metadata names the cluster.
	Metadata Metadata `json:"metadata"`
	// Spec is what the cluster shall be.
	Spec Spec `json:"spec,omitempty"`
}

// Metadata names the cluster.
type Metadata struct {
	// Name of the cluster: a DNS label of at most 40 characters. It cannot be changed later.
	Name string `json:"name"`
}

// Spec is what the user wants.
type Spec struct {
	// KubernetesVersion is a minor such as "1.36"; the patch comes from the release catalogue.
	// Default: the newest release that is tested.
	KubernetesVersion string `json:"kubernetesVersion,omitempty" scalar:"literal"`
	// Networking holds the address ranges. They cannot be changed later.
	Networking Networking `json:"networking,omitempty"`
	// Pools of like machines. Default: one pool "main" of one machine that is control plane and worker.
	Pools []Pool `json:"pools,omitempty"`
	// SSH is how `slipway apply` reaches the machines that pools list; a machine may say otherwise. Nodes never see it.
	SSH SSH `json:"ssh,omitempty"`
	// ControlPlane says how the control plane runs and is reached.
	ControlPlane ControlPlane `json:"controlPlane,omitempty"`
	// FeatureGates are given to every Kubernetes component. Default: none.
	FeatureGates map[string]bool `json:"featureGates,omitempty"`
	// Components holds overrides; they are merged last.
	Components Components `json:"components,omitempty"`
	// Units are processes of your own, placed by rules on the machines and supervised like the components.
	Units []Unit `json:"units,omitempty"`
	// AddOns are applied once the API answers.
	AddOns []AddOn `json:"addOns,omitempty"`
	// OS says how every machine's operating system is prepared.
	OS OS `json:"os,omitempty"`
	// Hooks are commands of your own, run on the machines before or after a phase of their start.
	Hooks []Hook `json:"hooks,omitempty"`
	// StaticPods are pods that the machines' kubelets run by themselves, beside the API. They may refer to nothing of the API.
	StaticPods []StaticPod `json:"staticPods,omitempty"`
	// FileAssets are files of your own on the machines. They hold no secrets: a spec lies about in plain text.
	FileAssets []FileAsset `json:"fileAssets,omitempty"`
}

// Networking holds the address ranges. They cannot be changed later.
type Networking struct {
	// PodCIDR is the range of all pods. Default 10.244.0.0/16.
	PodCIDR string `json:"podCIDR,omitempty"`
	// NodePodPrefix is the prefix length of each node's share of podCIDR. Default 24.
	NodePodPrefix *int `json:"nodePodPrefix,omitempty"`
	// ServiceCIDR is the range of Service addresses. Default 10.96.0.0/16.
	ServiceCIDR string `json:"serviceCIDR,omitempty"`
	// ClusterDomain is the DNS suffix of Services. Default cluster.local.
	ClusterDomain string `json:"clusterDomain,omitempty"`
	// DNSAddress is the Service address of the cluster DNS. Default: the tenth address of serviceCIDR.
	DNSAddress string `json:"dnsAddress,omitempty"`
}

// Pool is a group of like machines.
type Pool struct {
	// Name of the pool: a DNS label. Machines are called CLUSTER-NAME-0, CLUSTER-NAME-1, … unless they have names of their own.
	Name string `json:"name"`
	// Roles: control-plane, worker, etcd. A control plane runs etcd too unless some pool has the role etcd.
	// Default: control-plane and worker for the only pool, worker where there are several.
	Roles []string `json:"roles,omitempty"`
	// Count of machines. Default: the number of machines listed, or 1.
	Count *int `json:"count,omitempty"`
	// Labels of the machines' Nodes.
	Labels map[string]string `json:"labels,omitempty"`
	// Taints of the machines' Nodes. Default: node-role.kubernetes.io/control-plane:NoSchedule on a control plane that is no worker.
	Taints []Taint `json:"taints,omitempty"`
	// Replacement says how a machine may take the place of another one of this pool: Approved, by slipway node approve; or ByAddress:
	// whoever comes from the address of a machine that nobody hears from any more takes its place, with its name and without being asked.
	// ByAddress is for workers with addresses of their own in a network that hands them to no stranger. Default Approved.
	Replacement string `json:"replacement,omitempty"`
	// Machines that exist already, for `slipway apply`.
	Machines []Machine `json:"machines,omitempty"`
	// MachineLabels are further labels of single machines that have no line of their own under machines, by the machine's name:
	// {dev-main-0: {disk: ssd}}. A change moves the units that depend on it and restarts nothing else.
	MachineLabels map[string]map[string]string `json:"machineLabels,omitempty"`
}

// Taint keeps pods away that do not tolerate it.
type Taint struct {
	// Key is what a pod's toleration names, such as example.org/only.
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
	// Address of the machine, by which the others reach it.
	Address string `json:"address"`
	// Labels of this machine, beside its pool's. A change moves the units that depend on it and restarts nothing else.
	Labels map[string]string `json:"labels,omitempty"`
	// SSH is how to reach this machine where that differs from spec.ssh.
	SSH SSH `json:"ssh,omitempty"`
}

// SSH is how an operator reaches a machine. There are no passwords here: use keys.
type SSH struct {
	// User to log in as: root, or one who may use sudo without a password. Default root.
	User string `json:"user,omitempty"`
	// Port of the machine's SSH server. Default 22.
	Port *int `json:"port,omitempty"`
	// IdentityFile is a private key on the operator's computer; ~/ is the home folder. Default: the keys of the SSH agent,
	// then ~/.ssh/id_ed25519, ~/.ssh/id_ecdsa and ~/.ssh/id_rsa.
	IdentityFile string `json:"identityFile,omitempty"`
	// Jump is a host to go through, as USER@HOST:PORT or parts of that. Default: none.
	Jump string `json:"jump,omitempty"`
	// HostKey is the only key that the machine's SSH server may have: a public key such as "ssh-ed25519 AAAA…", or its
	// fingerprint such as "SHA256:…". Default: what ~/.ssh/known_hosts says.
	HostKey string `json:"hostKey,omitempty"`
}

// ControlPlane says how the control plane runs and is reached.
type ControlPlane struct {
	// Form: HostUnits or StaticPods, never mixed within a cluster. Default HostUnits.
	Form string `json:"form,omitempty"`
	// ExtraSANs are further names and addresses in the API server's certificate.
	ExtraSANs []string `json:"extraSANs,omitempty"`
	// LoadBalancer is host:port of a load balancer before the API servers, for clients outside; nodes use it only when no API server
	// answers, and nothing waits for it.
	LoadBalancer string `json:"loadBalancer,omitempty"`
}

// Components holds the overrides of each component.
type Components struct {
	// Etcd keeps the cluster's state.
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
	// Flags without leading dashes. Values may be text, numbers, booleans or lists; null takes a default flag away.
	// ${node.name}, ${node.address} and ${node.podCIDR} stand for the node's own name, address and share of the pod range.
	Flags map[string]any `json:"flags,omitempty" scalar:"literal"`
	// Config is merged into the component's configuration file (kubelet, kubeProxy, scheduler only); null takes a field away.
	Config map[string]any `json:"config,omitempty"`
	// Env is the process environment beyond the defaults.
	Env map[string]string `json:"env,omitempty" scalar:"literal"`
}

// CoreDNS is the cluster DNS.
type CoreDNS struct {
	// Replicas. Default 1 on one node, otherwise 2.
	Replicas *int `json:"replicas,omitempty"`
	// Corefile replaces the whole configuration. Default: cluster names, and /etc/resolv.conf for all others.
	Corefile string `json:"corefile,omitempty"`
}

// Unit is a process of your own. Its options know the specifiers %n, %N, %p, %i and %% of systemd.
type Unit struct {
	// Name such as web, or db@ for a template that has instances.
	Name string `json:"name"`
	// Instances of a template: [main, events] makes db@main and db@events of db@.
	Instances []string `json:"instances,omitempty"`
	// Exec is the program and its arguments. The program is an absolute path on the machine; no shell is between.
	Exec []string `json:"exec"`
	// Env is the process environment. What the machine knows of itself (/run/slipway/facts.env) is there, too.
	Env map[string]string `json:"env,omitempty" scalar:"literal"`
	// Directory to run in. Default /.
	Directory string `json:"directory,omitempty"`
	// Ready says when it may be relied on. Default: as soon as it has been started.
	Ready UnitReady `json:"ready,omitempty"`
	// Facts that the machine must know before the unit starts, such as DEFAULT_IPV4. Without them it waits and says so.
	Facts []string `json:"facts,omitempty"`
	// StopTimeout is the time between SIGTERM and SIGKILL, such as 30s. Default 10s.
	StopTimeout string `json:"stopTimeout,omitempty"`
	// On: the machine has one of the values for each label: {disk: [ssd, nvme], zone: [a]}. Each machine has the labels
	// kubernetes.io/hostname and slipway.dev/pool, too.
	On map[string][]string `json:"on,omitempty"`
	// With: the machine has all these units or components (etcd, kube-apiserver, kubelet, …). The unit starts after them.
	With []string `json:"with,omitempty"`
	// Conflicts are patterns of units and components that are never on the same machine, whichever side says so.
	Conflicts []string `json:"conflicts,omitempty"`
	// Global: on every machine that the rules allow. Default false: on one of them.
	Global bool `json:"global,omitempty"`
	// Pin is the name of the only machine that will do.
	Pin string `json:"pin,omitempty"`
	// Replaces names units that make room: this one takes the machine of the first, and those move elsewhere.
	Replaces []string `json:"replaces,omitempty"`
	// Placed is where the unit is, as Slipway writes it into a completed spec. It stays there while the rules allow.
	Placed []string `json:"placed,omitempty"`
}

// UnitReady is one question that tells when a unit may be relied on.
type UnitReady struct {
	// HTTP is an address such as http://127.0.0.1:8080/healthz that answers 200.
	HTTP string `json:"http,omitempty"`
	// TCP is host:port that takes connections.
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
	// Manifest is YAML text, one or more documents. It holds no Secret: make those with kubectl.
	Manifest string `json:"manifest"`
}

// OS says how every machine's operating system is prepared. A machine that shares its kernel with a host, as local machines do, leaves
// alone what belongs to the kernel: modules, swap, and sysctls that are not its own.
type OS struct {
	// Modules of the kernel, besides those that Kubernetes needs. One that is built in counts as loaded.
	// Default: br_netfilter, nf_tables and overlay, where the kernel has them.
	Modules []string `json:"modules,omitempty"`
	// Sysctls by name; null leaves a default away. A value that is right already is not written.
	// Default: net.ipv4.ip_forward=1, and bridged traffic passes the packet filter.
	Sysctls map[string]any `json:"sysctls,omitempty" scalar:"literal"`
	// Packages by package manager (apt, dnf, zypper or apk); each machine installs those of its own. Default: none.
	Packages map[string][]string `json:"packages,omitempty"`
	// Groups that must exist. They are never removed. Default: none.
	Groups []Group `json:"groups,omitempty"`
	// Users that must exist. They have no password and are never removed. Default: none.
	Users []User `json:"users,omitempty"`
	// Folders that must exist. They are removed only while they are empty. Default: none.
	Folders []Folder `json:"folders,omitempty"`
	// Limits of users' sessions and of systemd's units, such as nofile or memlock: a number or unlimited. Default: the distribution's.
	Limits map[string]string `json:"limits,omitempty" scalar:"literal"`
	// TimeSync: require or ignore. With require no certificate is made before the clock is synchronised. Default ignore.
	TimeSync string `json:"timeSync,omitempty"`
	// Swap: "off", allow or require. Default allow.
	Swap string `json:"swap,omitempty"`
	// Hostname: keep the machine's, or node: it is called like its node. Default keep.
	Hostname string `json:"hostname,omitempty"`
}

// Group of the operating system.
type Group struct {
	// Name of the group.
	Name string `json:"name"`
	// GID is its number. Default: the next that is free.
	GID *int `json:"gid,omitempty"`
}

// User of the operating system.
type User struct {
	// Name of the user.
	Name string `json:"name"`
	// UID is its number. Default: the next that is free.
	UID *int `json:"uid,omitempty"`
	// Group is its first group. Default: one of its own name.
	Group string `json:"group,omitempty"`
	// Groups that it belongs to as well. Default: none.
	Groups []string `json:"groups,omitempty"`
	// Home is its folder, which is made if it has to be. Default: none.
	Home string `json:"home,omitempty"`
	// Shell of its sessions. Default /usr/sbin/nologin.
	Shell string `json:"shell,omitempty"`
}

// Folder of the machine.
type Folder struct {
	// Path from the root on.
	Path string `json:"path"`
	// Mode in octal digits. Default 0755.
	Mode string `json:"mode,omitempty" scalar:"literal"`
	// Owner by name. Default root.
	Owner string `json:"owner,omitempty"`
	// Group by name. Default root.
	Group string `json:"group,omitempty"`
}

// Hook is a command that runs once on each machine, before or after a phase: prepare, files, runtime, etcd, control-plane, kubelet,
// kube-proxy or node-ready. One that fails is tried again, and what comes after it waits.
type Hook struct {
	// Name of the hook: a DNS label.
	Name string `json:"name"`
	// Before is the phase that waits for the hook.
	Before string `json:"before,omitempty"`
	// After is the phase that the hook waits for; what comes after that phase waits for the hook.
	After string `json:"after,omitempty"`
	// Command is a program with its arguments; no shell reads it. ${node.name}, ${node.address} and ${node.podCIDR} stand for the
	// node's own. A changed command runs again.
	Command []string `json:"command"`
	// Roles of the machines that it runs on. Default: all.
	Roles []string `json:"roles,omitempty"`
	// Timeout of one run, such as 30s or 10m. Default 5m.
	Timeout string `json:"timeout,omitempty"`
	// EveryBoot: it runs again after each boot. Default false.
	EveryBoot bool `json:"everyBoot,omitempty"`
}

// StaticPod is a pod that a kubelet runs by itself.
type StaticPod struct {
	// Name of its manifest in /etc/kubernetes/manifests: a DNS label, and no component's.
	Name string `json:"name"`
	// Manifest is YAML text: one Pod.
	Manifest string `json:"manifest"`
	// Roles of the machines that run it. Default: all.
	Roles []string `json:"roles,omitempty"`
}

// FileAsset is a file on the machines. Taken out of the spec, it is taken from the machines, unless somebody has changed it there.
type FileAsset struct {
	// Path from the root on, in a folder that is not Slipway's.
	Path string `json:"path"`
	// Mode in octal digits. Default 0644.
	Mode string `json:"mode,omitempty" scalar:"literal"`
	// Content of the file, at most 256 KiB.
	Content string `json:"content"`
	// Roles of the machines that have it. Default: all.
	Roles []string `json:"roles,omitempty"`
}
