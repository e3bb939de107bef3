// SPDX-License-Identifier: Apache-2.0

// Package objects holds the Kubernetes objects that every cluster needs, as plain data: the bindings for Slipway's own
// certificates, and the cluster DNS. It also parses the add-ons of the spec. It does no I/O: package kube applies the objects.
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

// Object is one Kubernetes object in the form of decoded JSON: maps, lists, strings, numbers, booleans.
type Object map[string]any

// AddOn is a named set of objects, in the order of their dependencies. The name becomes a label of each object, by which
// Slipway finds them when the add-on is removed.
type AddOn struct {
	Name    string   `json:"name"`
	Objects []Object `json:"objects"`
}

// Label is the label whose value is the add-on's name.
const Label = "slipway.dev/addon"

// Names of the add-ons that every cluster has. A user's add-on cannot use them.
const (
	Base = "slipway-base"
	DNS  = "slipway-dns"
)

// Params are the inputs of [Cluster].
type Params struct {
	DNSAddress   netip.Addr // Service address of the cluster DNS, which kubelets write to pods' resolv.conf
	Replicas     int        // of the cluster DNS
	Spread       bool       // the cluster has as many nodes as replicas, so no two replicas share a node
	Corefile     string
	CoreDNSImage string // the exact reference that was imported on the nodes, so that nothing is pulled

	// APIEndpoint, if valid, is the address of the API for CoreDNS: a control-plane node's own address, which the API server's
	// certificate includes. Without it, CoreDNS connects to the Service address, which answers only once kube-proxy has
	// programmed it. On a network that drops packets, a connection that is opened too early hangs for 30 s.
	APIEndpoint netip.AddrPort
}

// Cluster returns the add-ons that every cluster needs. They do not depend on each other.
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

// Namespace is "" if the object names none.
func (o Object) Namespace() string { return text(o.meta(), "namespace") }

// String is the object's kind and name: "Service kube-system/kube-dns".
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

// Seeds returns what pods need in the namespaces that every cluster has, and what the controller-manager creates once it
// runs: the default service account and the CA that pods trust (PEM text).
func Seeds(rootCA string) []Object {
	var out []Object
	for _, ns := range []string{"default", "kube-system"} {
		out = append(out,
			Object{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": map[string]any{"name": "default", "namespace": ns}},
			Object{
				"apiVersion": "v1", "kind": "ConfigMap",
				"metadata": map[string]any{
					"name": "kube-root-ca.crt", "namespace": ns,
					// The publisher replaces the object if this annotation is missing.
					"annotations": map[string]any{"kubernetes.io/description": "Trust this CA to verify the API server; service accounts get it with their tokens."},
				},
				"data": map[string]any{"ca.crt": rootCA},
			})
	}
	return out
}
