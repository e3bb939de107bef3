// SPDX-License-Identifier: Apache-2.0

// Package config makes a short spec complete: every flag, path and name of every component is present, and each value
// knows where it comes from. It decides values; it does not decide order (package planner) and does nothing.
//
// Read [Cluster] and [Complete] first. One file per component.
//
//	spec.Cluster{Name: "dev"} + catalog.Release 1.36  →  Cluster{APIServer: Component{Flags: {"secure-port": {"6443", default}, …}}}
package config

import (
	"net/netip"

	"github.com/slipway-project/slipway/internal/core/spec"
)

// Origin says where a value comes from.
type Origin struct {
	From Source
	// Note: for User the place ("cluster.yaml:41"), for Derived what it was derived from, for Default the reason if there is one.
	Note string
}

// Source is one of three.
type Source string

// The sources of a value. A user's value that equals what would be there anyway keeps the default's origin, so that a
// completed spec completes to itself.
const (
	Default Source = "default"
	Derived Source = "derived"
	User    Source = "user"
)

// Cluster is a complete configuration. Nothing in it is optional.
type Cluster struct {
	Name          string
	Release       string // exact Kubernetes version, "1.36.4"
	Minor         string // "1.36"
	PauseImage    string // sandbox image, from the release
	CoreDNSImage  string // from the release
	KubeImage     string // from the release
	EtcdImage     string // from the release
	PodCIDR       netip.Prefix
	NodePodPrefix int
	ServiceCIDR   netip.Prefix
	ClusterDomain string
	DNSAddress    netip.Addr
	Form          string
	ExtraSANs     []string
	LoadBalancer  string // host:port, or empty
	Pools         []Pool
	Gates         map[string]bool // feature gates of every Kubernetes component

	Etcd              Component
	APIServer         Component
	ControllerManager Component
	Scheduler         Component
	Kubelet           Component
	KubeProxy         Component
	Containerd        Component
	CoreDNS           CoreDNS
	AddOns            []AddOn
	OS                OS
	Hooks             []Hook
	StaticPods        []spec.StaticPod
	FileAssets        []spec.FileAsset
	Units             []Unit // of the user's own, by name; who has decided for them has set Placed

	// Origins of the values above that are no flags, by spec path: "networking.podCIDR".
	Origins map[string]Origin
}

// Pool is a group of like machines, complete.
type Pool struct {
	Name   string
	Roles  []string
	Labels map[string]string
	Taints []Taint
	Nodes  []NodeName
	// Replacement is spec.Approved or spec.ByAddress.
	Replacement string
}

// Taint as Kubernetes knows it.
type Taint struct{ Key, Value, Effect string }

// NodeName is one machine of a pool. Address is the zero Addr where the machine provider decides it.
type NodeName struct {
	Name    string
	Address netip.Addr
	Index   int // position in the whole cluster; chooses the node's share of the pod range
	// Labels are the machine's own, beside its pool's.
	Labels map[string]string
	// Unlisted: the spec does not know the machine; it has come with a token.
	Unlisted bool
}

// Flag is one command-line flag: one value, or several for flags that may be repeated, or none: the user took it away.
type Flag struct {
	Values []string
	Origin Origin
}

// Component is one component, complete.
type Component struct {
	Flags map[string]Flag // names without dashes
	// Config is the component's configuration file; nil for components that have none.
	Config map[string]any
	Env    map[string]string
	// Origins of Config leaves ("authentication.anonymous.enabled") and Env ("env.GOGC"). A leaf that has an origin and no
	// value was taken away by the user.
	Origins map[string]Origin
}

// CoreDNS is the cluster DNS, complete.
type CoreDNS struct {
	Replicas int
	Corefile string
}

// AddOn is a named set of manifests.
type AddOn struct{ Name, Manifest string }

// Facts are what a machine reports of itself before it is planned for.
type Facts struct {
	Address      netip.Addr // the node's own address
	CgroupV1     bool
	OOMScoreAdj  bool   // may lower oom_score_adj (CAP_SYS_RESOURCE)
	ResolvConf   string // path of a resolv.conf fit for pods' upstream
	HasDefaultGW bool
}

// Node is one node's configuration, complete: the cluster's with the node's own values filled in.
type Node struct {
	Cluster Cluster // flags and config with ${node.…} replaced
	Pool    Pool
	Name    string
	Index   int
	PodCIDR netip.Prefix
	Facts   Facts
	Labels  map[string]string // the machine's own, beside its pool's
	Units   []Unit            // of the user's own, that are placed here
}
