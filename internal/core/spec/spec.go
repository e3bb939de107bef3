// SPDX-License-Identifier: Apache-2.0

// Package spec reads the user's document: it decodes one YAML document strictly, checks it as a whole, and reports every
// problem at once with line, column and field path. It sets no defaults (package config does) and does no I/O.
//
// Read [Cluster] and [Parse] first. The fields and their documentation are in api/cluster/v1alpha1; other packages use
// those types under the names that this package gives them.
//
//	apiVersion: slipway.dev/v1alpha1      →  Cluster{Name: "dev"}, nil
//	kind: Cluster
//	metadata: {nam: dev}                  →  cluster.yaml:3:12: metadata.nam: unknown field: did you mean "name"?
package spec

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/slipway-project/slipway/api/cluster/v1alpha1"
	"github.com/slipway-project/slipway/internal/core/endpoint"
)

// The head of a document in the newest version.
const (
	APIVersion = v1alpha1.APIVersion
	Kind       = v1alpha1.Kind
)

// The types of a spec. They are the same before and after defaulting.
type (
	Document     = v1alpha1.Cluster
	Metadata     = v1alpha1.Metadata
	Spec         = v1alpha1.Spec
	Networking   = v1alpha1.Networking
	Pool         = v1alpha1.Pool
	Taint        = v1alpha1.Taint
	Machine      = v1alpha1.Machine
	SSH          = v1alpha1.SSH
	Jump         = endpoint.Jump
	ControlPlane = v1alpha1.ControlPlane
	Components   = v1alpha1.Components
	Component    = v1alpha1.Component
	Values       = v1alpha1.Values
	CoreDNS      = v1alpha1.CoreDNS
	Unit         = v1alpha1.Unit
	UnitReady    = v1alpha1.UnitReady
	AddOn        = v1alpha1.AddOn
	OS           = v1alpha1.OS
	Group        = v1alpha1.Group
	User         = v1alpha1.User
	Directory    = v1alpha1.Directory
	Hook         = v1alpha1.Hook
	StaticPod    = v1alpha1.StaticPod
	FileAsset    = v1alpha1.FileAsset
)

// Cluster is a checked spec. A zero value means that the document does not set the field, except where [Cluster.IsSet]
// tells more. Each unit is one instance, without specifiers, and each machine's SSH holds the cluster's settings that the
// machine does not override. It is not changed after Parse.
type Cluster struct {
	File string // as given to Parse
	Name string
	Spec

	// Positions of every field that the document sets, by path: "spec.pools[0].roles",
	// "spec.components.etcd.flags.quota-backend-bytes".
	Positions map[string]Position
}

// Position is a place in the document, counted from 1.
type Position struct{ Line, Column int }

// IsSet reports whether the document sets the field. A list that is set to be empty differs from one that is not set.
func (c Cluster) IsSet(path string) bool {
	_, ok := c.Positions[path]
	return ok
}

// Where returns a field's file and line, "cluster.yaml:41", or the file alone where the document does not set the field.
func (c Cluster) Where(path string) string {
	p, ok := c.Positions[path]
	if !ok {
		return c.File
	}
	return fmt.Sprintf("%s:%d", c.File, p.Line)
}

// Defaults. Package config applies them; those of networking are here because "the pod CIDR and the service CIDR overlap"
// must be found even where the document sets only one of the two.
const (
	DefaultPodCIDR       = "10.244.0.0/16"
	DefaultNodePodPrefix = 24
	DefaultServiceCIDR   = "10.96.0.0/16"
	DefaultClusterDomain = "cluster.local"
	DefaultPool          = "main"
	DNSIndex             = 10 // the cluster DNS has the tenth address of the service CIDR, as with kubeadm

	DefaultShell         = "/usr/sbin/nologin"
	DefaultDirectoryMode = 0o755
	DefaultAssetMode     = 0o644
	DefaultHookTimeout   = 5 * time.Minute
)

// The roles of a pool.
const (
	RoleControlPlane = "control-plane"
	RoleWorker       = "worker"
	RoleEtcd         = "etcd"
)

// The forms of the control plane.
const (
	HostUnits  = "HostUnits"
	StaticPods = "StaticPods"
)

// How the machines of a pool are replaced.
const (
	Approved  = "Approved"
	ByAddress = "ByAddress"
)

// TaintControlPlane keeps ordinary pods off machines that are control plane only.
const TaintControlPlane = "node-role.kubernetes.io/control-plane"

// The rules for a machine's clock, swap and host name.
const (
	TimeRequire, TimeIgnore         = "require", "ignore"
	SwapOff, SwapAllow, SwapRequire = "off", "allow", "require"
	HostnameKeep, HostnameNode      = "keep", "node"
)

// The phases of a machine's start that hooks name. Package planner decides what belongs to each.
const (
	PhasePrepare      = "prepare"
	PhaseFiles        = "files"
	PhaseRuntime      = "runtime"
	PhaseEtcd         = "etcd"
	PhaseControlPlane = "control-plane"
	PhaseKubelet      = "kubelet"
	PhaseKubeProxy    = "kube-proxy"
	PhaseNodeReady    = "node-ready"
)

// Phases lists the phases in the order in which they begin.
func Phases() []string {
	return []string{PhasePrepare, PhaseFiles, PhaseRuntime, PhaseEtcd, PhaseControlPlane, PhaseKubelet, PhaseKubeProxy, PhaseNodeReady}
}

// The names by which units refer to the components.
const (
	ComponentEtcd              = "etcd"
	ComponentAPIServer         = "kube-apiserver"
	ComponentControllerManager = "kube-controller-manager"
	ComponentScheduler         = "kube-scheduler"
	ComponentKubelet           = "kubelet"
	ComponentKubeProxy         = "kube-proxy"
	ComponentContainerd        = "containerd"
	ComponentBalancer          = "api-balancer" // on machines without an API server
)

// ComponentNames lists the names by which units refer to the components.
func ComponentNames() []string {
	return []string{
		ComponentEtcd, ComponentAPIServer, ComponentControllerManager, ComponentScheduler, ComponentKubelet, ComponentKubeProxy, ComponentContainerd,
		ComponentBalancer,
	}
}

// DefaultRoles returns the roles of a pool that names none, where the cluster has that many pools.
func DefaultRoles(pools int) []string {
	if pools <= 1 {
		return []string{RoleControlPlane, RoleWorker}
	}
	return []string{RoleWorker}
}

// hasRole reports whether a pool has a role, where the cluster has that many pools. Default roles count.
func hasRole(p Pool, pools int, role string) bool {
	if len(p.Roles) == 0 {
		return slices.Contains(DefaultRoles(pools), role)
	}
	return slices.Contains(p.Roles, role)
}

// MachineCount returns the number of machines of the pool.
func MachineCount(p Pool) int {
	switch {
	case len(p.Machines) > 0:
		return len(p.Machines)
	case p.Count > 0:
		return p.Count
	default:
		return 1
	}
}

// MachineName returns the name of the pool's n-th machine, counted from 0.
func MachineName(cluster string, p Pool, n int) string {
	if n < len(p.Machines) {
		return p.Machines[n].Name
	}
	return fmt.Sprintf("%s-%s-%d", cluster, p.Name, n)
}

// MachineNames lists the names of all machines.
func (c Cluster) MachineNames() []string {
	pools := c.Pools
	if len(pools) == 0 {
		pools = []Pool{{Name: DefaultPool}}
	}
	var out []string
	for _, p := range pools {
		for n := range MachineCount(p) {
			out = append(out, MachineName(c.Name, p, n))
		}
	}
	return out
}

// Nth returns the n-th address of an IPv4 range, counted from 0. It does not check that the range is long enough.
func Nth(p netip.Prefix, n int) netip.Addr {
	b := p.Addr().As4()
	v := (uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])) + uint32(n)
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}
