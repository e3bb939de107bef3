// SPDX-License-Identifier: Apache-2.0

// Package config completes a checked spec: every flag, every configuration field, every name, each with its origin. The
// result is a value of the spec's own types, so that it can be printed as a spec, and that spec completes to itself.
//
// Read [Cluster] and [Complete] first; [ForNode] fills in one machine's own values. The values of flags are in one file per
// group of components: controlplane.go and node_components.go.
package config

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/placement"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// Origin is where a value comes from.
type Origin struct {
	From Source
	// Note: for User the position ("cluster.yaml:41"), for Derived what it was derived from, for Default the reason if there is one.
	Note string
}

// Source is one of three.
type Source string

// The sources of a value. A user's value that equals the default keeps the default's origin, so that a completed spec
// completes to itself.
const (
	Default Source = "default"
	Derived Source = "derived"
	User    Source = "user"
)

// Cluster is a complete configuration. Its fields have the spec's types; none is optional.
type Cluster struct {
	Name         string
	Release      string // exact Kubernetes version, "1.36.4"
	Minor        string // "1.36"
	PauseImage   string // the images are the release's
	CoreDNSImage string
	KubeImage    string
	EtcdImage    string

	spec.Networking
	spec.ControlPlane
	// Components: a flag without values and a nil field of a configuration file were removed by the user.
	spec.Components
	Pools        []Pool
	FeatureGates map[string]bool // of every Kubernetes component
	AddOns       []spec.AddOn
	OS           spec.OS
	Hooks        []spec.Hook
	StaticPods   []spec.StaticPod
	FileAssets   []spec.FileAsset
	Units        []spec.Unit       // by name; compose.Place sets Placed
	Unplaced     map[string]string // why a unit runs nowhere, by its name

	// Origins by path in the spec: "spec.networking.podCIDR". A path without an origin has the origin of the value around it.
	Origins map[string]Origin
}

// Pool is a group of identical machines: the spec's pool, complete, and its machines.
type Pool struct {
	spec.Pool
	Nodes []NodeName
}

// NodeName is one machine of a pool. Address is the zero Addr where the machine provider assigns it.
type NodeName struct {
	Name    string
	Address netip.Addr
	Index   int // chooses the node's pod CIDR; unique in the cluster
	// Labels are the machine's own, in addition to its pool's.
	Labels map[string]string
	// Unlisted: the spec does not list the machine; it joined with a token.
	Unlisted bool
}

// Node is one node's configuration: the cluster's with the node's own values filled in.
type Node struct {
	Cluster Cluster // ${node.…} replaced, removed fields gone
	Pool    Pool
	Name    string
	Index   int
	PodCIDR netip.Prefix
	Facts   machine.Facts
	Labels  map[string]string // the machine's own, in addition to its pool's
	Units   []spec.Unit       // that are placed on this node
}

// Has reports whether the pool's machines have the role. Where etcd runs depends on all pools: see [Cluster.EtcdMembers].
func (p Pool) Has(role string) bool { return slices.Contains(p.Roles, role) }

// HasOneOf reports whether the pool has one of the roles; no roles mean all pools.
func (p Pool) HasOneOf(roles []string) bool {
	return len(roles) == 0 || slices.ContainsFunc(roles, p.Has)
}

// AllNodes lists the machines of all pools.
func (c Cluster) AllNodes() []NodeName { return c.nodesOf(func(Pool) bool { return true }) }

// ControlPlanes lists the machines that run the control plane.
func (c Cluster) ControlPlanes() []NodeName {
	return c.nodesOf(func(p Pool) bool { return p.Has(RoleControlPlane) })
}

// EtcdMembers lists the machines that run etcd: those with the role, or all control planes if none has it.
func (c Cluster) EtcdMembers() []NodeName { return c.nodesOf(c.RunsEtcd) }

// RunsEtcd reports whether the machines of p run etcd.
func (c Cluster) RunsEtcd(p Pool) bool {
	if slices.ContainsFunc(c.Pools, func(q Pool) bool { return q.Has(RoleEtcd) }) {
		return p.Has(RoleEtcd)
	}
	return p.Has(RoleControlPlane)
}

func (c Cluster) nodesOf(match func(Pool) bool) []NodeName {
	var out []NodeName
	for _, p := range c.Pools {
		if match(p) {
			out = append(out, p.Nodes...)
		}
	}
	return out
}

// Machines lists the cluster's machines as package placement sees them.
func (c Cluster) Machines() []placement.Machine {
	var out []placement.Machine
	for _, p := range c.Pools {
		runs := []string{spec.ComponentContainerd, spec.ComponentKubelet, spec.ComponentKubeProxy}
		if c.RunsEtcd(p) {
			runs = append(runs, spec.ComponentEtcd)
		}
		if p.Has(RoleControlPlane) {
			runs = append(runs, spec.ComponentAPIServer, spec.ComponentControllerManager, spec.ComponentScheduler)
		} else {
			runs = append(runs, spec.ComponentBalancer)
		}
		for _, n := range p.Nodes {
			labels := machine.PlacementLabels(n.Name, p.Name, machine.NodeLabels(p.Roles, p.Labels, n.Labels))
			out = append(out, placement.Machine{Name: n.Name, Labels: labels, Runs: runs, Unlisted: n.Unlisted})
		}
	}
	return out
}

// WithPlacement returns the cluster with its units where on says, and the reasons for the units that run nowhere. The
// result shares nothing mutable with c.
func (c Cluster) WithPlacement(d placement.Decision) Cluster {
	c.Units, c.Origins, c.Unplaced = slices.Clone(c.Units), maps.Clone(c.Origins), map[string]string{}
	for i, u := range c.Units {
		c.Units[i].Placed = d.On[u.Name]
		at := spec.Element("spec.units", i) + ".placed"
		delete(c.Origins, at)
		if len(d.On[u.Name]) > 0 {
			c.Origins[at] = from("its rules")
		}
	}
	for _, u := range d.Unplaced {
		c.Unplaced[u.Unit] = u.Reason
	}
	return c
}

// component is a component and its names in the spec and in the release.
type component struct {
	name    string // "apiserver"
	program string // "kube-apiserver"
	*spec.Component
}

// kubernetes reports whether the program takes Kubernetes' feature gates.
func (x component) kubernetes() bool { return x.program != "etcd" && x.program != "containerd" }

// components lists the components that have flags, in the order of the spec.
func components(c *spec.Components) []component {
	return []component{
		{"etcd", "etcd", &c.Etcd},
		{"apiserver", "kube-apiserver", &c.APIServer},
		{"controllerManager", "kube-controller-manager", &c.ControllerManager},
		{"scheduler", "kube-scheduler", &c.Scheduler},
		{"kubelet", "kubelet", &c.Kubelet},
		{"kubeProxy", "kube-proxy", &c.KubeProxy},
		{"containerd", "containerd", &c.Containerd},
	}
}

// Program returns the program of a component: Program("apiserver") is "kube-apiserver". Empty: there is none.
func Program(name string) string {
	for _, x := range components(&spec.Components{}) {
		if x.name == name {
			return x.program
		}
	}
	return ""
}

// ComponentOf returns a component's settings by its name in the spec.
func (c Cluster) ComponentOf(name string) (spec.Component, bool) {
	for _, x := range components(&c.Components) {
		if x.name == name {
			return *x.Component, true
		}
	}
	return spec.Component{}, false
}
