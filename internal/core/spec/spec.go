// SPDX-License-Identifier: Apache-2.0

// Package spec reads what the user wrote: one YAML document, decoded strictly, checked as a whole, every problem told at
// once with line, column and field path. It is the only package that knows the YAML types of api/cluster. It fills no
// defaults (package config does) and touches nothing.
//
// Read [Cluster] and [Parse] first.
//
//	apiVersion: slipway.dev/v1alpha1      →  Cluster{Name: "dev"}, nil
//	kind: Cluster
//	metadata: {nam: dev}                  →  cluster.yaml:3:12: metadata.nam: unknown field: did you mean "name"?
package spec

import (
	"fmt"
	"net/netip"

	"github.com/slipway-project/slipway/api/cluster/v1alpha1"
)

// The head of a document in the newest version, for those who print one.
const (
	APIVersion = v1alpha1.APIVersion
	Kind       = v1alpha1.Kind
)

// Cluster is a checked spec in the newest form. A zero value means "not said", except where [Cluster.Said] tells more.
// Nobody changes it after Parse.
type Cluster struct {
	File       string // as given to Parse
	Name       string
	Minor      string // "1.36"; empty: the catalogue's default
	Networking Networking
	Pools      []Pool
	Form       string
	ExtraSANs  []string
	// LoadBalancer is host:port or empty.
	LoadBalancer string
	Gates        map[string]bool

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
	StaticPods        []StaticPod
	FileAssets        []FileAsset
	Units             []Unit // of templates, each instance

	// Places of every field that the document holds, by path: "spec.pools[0].roles", "spec.components.etcd.flags.quota-backend-bytes".
	Places map[string]Place
}

// Place is a position in the document, counted from 1.
type Place struct{ Line, Column int }

// Networking holds the address ranges.
type Networking struct {
	PodCIDR       netip.Prefix
	NodePodPrefix int
	ServiceCIDR   netip.Prefix
	ClusterDomain string
	DNSAddress    netip.Addr
}

// Pool is a group of like machines.
type Pool struct {
	Name     string
	Roles    []string
	Count    int
	Labels   map[string]string
	Taints   []Taint
	Machines []Machine
	// MachineLabels are those of machines without a line of their own, by name.
	MachineLabels map[string]map[string]string

	Replacement string // "", Approved or ByAddress
}

// Taint as Kubernetes knows it.
type Taint struct{ Key, Value, Effect string }

// Machine is a machine that exists already.
type Machine struct {
	Name    string
	Address netip.Addr
	Labels  map[string]string
	SSH     SSH // the cluster's where the machine says nothing
}

// SSH is how an operator reaches a machine. What nobody says is empty.
type SSH struct {
	User         string
	Port         int
	IdentityFile string
	Jump         Jump
	HostKey      string
}

// Jump is a host to go through. The zero value is none.
type Jump struct {
	User string
	Host string
	Port int
}

// Component is the override of one component.
type Component struct {
	Flags  map[string][]string // names without dashes; nil takes the flag away
	Config map[string]any      // a JSON merge patch: nil takes the field away
	Env    map[string]string
}

// CoreDNS is the override of the cluster DNS.
type CoreDNS struct {
	Replicas int
	Corefile string
}

// AddOn is a set of Kubernetes objects.
type AddOn struct{ Name, Manifest string }

// StaticPod is a pod that kubelets run by themselves.
type StaticPod struct {
	Name, Manifest string
	Roles          []string // none: all
}

// FileAsset is a file of the user's on the machines.
type FileAsset struct {
	Path    string
	Mode    uint32
	Content string
	Roles   []string // none: all
}

// DefaultAssetMode is a file's mode where none is said.
const DefaultAssetMode = 0o644

// Said tells whether the document holds the field. An empty list that was said differs from none at all.
func (c Cluster) Said(path string) bool {
	_, ok := c.Places[path]
	return ok
}

// Where is "cluster.yaml:41", for notes on where a value comes from.
func (c Cluster) Where(path string) string {
	p, ok := c.Places[path]
	if !ok {
		return c.File
	}
	return fmt.Sprintf("%s:%d", c.File, p.Line)
}
