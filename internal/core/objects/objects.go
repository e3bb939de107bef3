// SPDX-License-Identifier: Apache-2.0

// Package objects holds the Kubernetes objects that every cluster needs, as plain data: the bindings for Slipway's own
// certificates, and the cluster DNS. It also reads the add-ons of the spec. It talks to nobody: package kube applies.
//
// Read [Object], [AddOn] and [Cluster] first.
//
//	addons, err := objects.Cluster(objects.Params{Domain: "cluster.local", DNSAddress: …, Replicas: 1, …})
//	addons[1].Objects[0].String() // "ServiceAccount kube-system/coredns"
package objects

import (
	"fmt"
	"net/netip"
)

// Object is one Kubernetes object, as its JSON would be: maps, lists, strings, numbers, booleans.
type Object map[string]any

// AddOn is a named set of objects, in the order in which a reader expects them. The name becomes a label of each, by which
// they are known as ours when the add-on is no longer wanted.
type AddOn struct {
	Name    string   `json:"name"`
	Objects []Object `json:"objects"`
}

// Label is the label whose value is the add-on's name.
const Label = "slipway.dev/addon"

// Names of the add-ons that every cluster has. A user's add-on cannot have one of them.
const (
	Base = "slipway-base"
	DNS  = "slipway-dns"
)

// Params are what the objects depend on.
type Params struct {
	DNSAddress   netip.Addr // the cluster DNS' Service address; kubelets hand it to pods
	Replicas     int        // of the cluster DNS
	Spread       bool       // the cluster has as many nodes as replicas: no two share one
	Corefile     string
	CoreDNSImage string // the exact reference that was imported on the nodes; nothing is pulled when it is there

	// APIEndpoint, when valid, is where CoreDNS finds the API: a control-plane node's own address, for which the API server's
	// certificate is valid. Without it CoreDNS dials the Service address, which answers only once kube-proxy has programmed it;
	// behind a network that swallows packets a dial that comes too early hangs for 30 s.
	APIEndpoint netip.AddrPort
}

// Cluster lists what every cluster needs. The sets do not depend on each other.
func Cluster(p Params) ([]AddOn, error) {
	switch {
	case !p.DNSAddress.IsValid():
		return nil, fmt.Errorf("cluster objects: no address for the cluster DNS")
	case p.Replicas < 0:
		return nil, fmt.Errorf("cluster objects: %d replicas of the cluster DNS", p.Replicas)
	case p.CoreDNSImage == "":
		return nil, fmt.Errorf("cluster objects: no image for the cluster DNS")
	}
	base, err := Parse(Base, baseYAML)
	if err != nil {
		return nil, err
	}
	return []AddOn{base, {Name: DNS, Objects: dns(p)}}, nil
}

// APIVersion is "v1" or "GROUP/VERSION".
func (o Object) APIVersion() string { return text(o, "apiVersion") }

// Kind is the object's kind, "ConfigMap".
func (o Object) Kind() string { return text(o, "kind") }

// Name is the object's name.
func (o Object) Name() string { return text(o.meta(), "name") }

// Namespace is "" where the object names none.
func (o Object) Namespace() string { return text(o.meta(), "namespace") }

// String is how people call the object: "Service kube-system/kube-dns".
func (o Object) String() string {
	if ns := o.Namespace(); ns != "" {
		return o.Kind() + " " + ns + "/" + o.Name()
	}
	return o.Kind() + " " + o.Name()
}

func (o Object) meta() map[string]any {
	m, _ := o["metadata"].(map[string]any)
	return m
}

func text(m map[string]any, key string) string {
	s, _ := m[key].(string)
	return s
}
