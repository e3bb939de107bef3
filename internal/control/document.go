// SPDX-License-Identifier: Apache-2.0

// Package control is the control-plane role: it keeps what concerns the cluster and no single node, applies the cluster's
// own objects, approves the kubelets' serving certificates, and sets on each Node what a kubelet must not say of itself.
// It runs inside the agent of a control plane and meets the rest of the agent only in main. It never plans for a machine and
// never believes what a kubelet says of its node.
//
// Read [Document] (what it keeps) and [Role.Run] (what it does).
package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/objects"
)

// Version is the wire version of Document.
const Version = 1

// Document is what a control plane plans and works from: the sources, made by the operator. What follows from them is computed where
// it is used, see [Document.Desired]. It holds no Secret: objects.Parse refuses one in an add-on. What else a user writes into an
// add-on, a ConfigMap for example, can be read on the node.
type Document struct {
	Version    int               `json:"version"`
	Cluster    string            `json:"cluster"`
	Self       string            `json:"self"`                 // the name of the node that stores this document
	Spec       []byte            `json:"spec"`                 // completed, with the placement of units: nodes that join are planned by it
	Components map[string]string `json:"components,omitempty"` // name to digest: what the nodes run
	Records    []admission.Node  `json:"records"`              // the spec's nodes, with the keys that are known
}

// Desired is what the control role brings to the cluster and keeps there: what follows from a [Document].
type Desired struct {
	Document
	Config  config.Cluster
	Release catalog.Release
	AddOns  []objects.AddOn // in order; the cluster's own objects are the first
}

// Desired computes what follows from the document.
func (d Document) Desired() (Desired, error) {
	c, release, err := compose.Stored(d.Spec, d.Cluster)
	if err != nil {
		return Desired{}, err
	}
	addOns, err := compose.AddOns(c, d.Records)
	if err != nil {
		return Desired{}, err
	}
	return Desired{d, c, release, addOns}, nil
}

// The Deployment without which the cluster has no DNS. The cluster is up only when it is available.
const (
	dnsNamespace  = "kube-system"
	dnsDeployment = "coredns"
)

// Node is the machine's record: what the cluster says of a node, whatever its kubelet says.
type Node struct {
	Name      string            `json:"name"`
	Addresses []netip.Addr      `json:"addresses"`
	PodCIDR   netip.Prefix      `json:"podCIDR"`
	Labels    map[string]string `json:"labels,omitempty"`
	Taints    []machine.Taint   `json:"taints,omitempty"`
}

// Decode reads a document and refuses versions and fields that it does not know.
func Decode(data []byte) (Document, error) {
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return Document{}, fmt.Errorf("decode control document: %w", err)
	}
	if head.Version != Version {
		return Document{}, fmt.Errorf("decode control document: version %d, want %d: use the same slipway on operator and node", head.Version, Version)
	}
	var d Document
	strict := json.NewDecoder(bytes.NewReader(data))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&d); err != nil {
		return Document{}, fmt.Errorf("decode control document: %w", err)
	}
	if d.Self == "" {
		return Document{}, errors.New("decode control document: it does not name its node: run slipway up again with this slipway")
	}
	return d, nil
}

// pool returns a pool of the spec.
func (d Desired) pool(name string) (config.Pool, bool) {
	i := slices.IndexFunc(d.Config.Pools, func(p config.Pool) bool { return p.Name == name })
	if i < 0 {
		return config.Pool{}, false
	}
	return d.Config.Pools[i], true
}

// node is what the cluster says of the node with this record.
func (d Desired) node(rec admission.Node) Node {
	out := Node{Name: rec.Name, PodCIDR: rec.PodCIDR}
	if rec.Address.IsValid() {
		out.Addresses = []netip.Addr{rec.Address}
	}
	p, ok := d.pool(rec.Pool)
	if !ok {
		return out
	}
	var own map[string]string
	if i := slices.IndexFunc(p.Nodes, func(n config.NodeName) bool { return n.Name == rec.Name }); i >= 0 {
		own = p.Nodes[i].Labels
	}
	out.Labels, out.Taints = machine.NodeLabels(p.Roles, p.Labels, own), p.Taints
	return out
}

// IsControlPlane reports whether the record is that of a control plane; known is false when the spec does not have its pool.
func (d Desired) IsControlPlane(rec admission.Node) (is, known bool) {
	p, known := d.pool(rec.Pool)
	return p.Has(config.RoleControlPlane), known
}

// carriers are the items of the add-ons that bring the cluster DNS: before they are applied, an earlier deployment answers.
func (d Desired) carriers() (refs []string) {
	for _, a := range d.AddOns {
		for _, o := range a.Objects {
			if o.Kind() == "Deployment" && o.Namespace() == dnsNamespace && o.Name() == dnsDeployment {
				refs = append(refs, itemAddOn(a.Name))
			}
		}
	}
	return refs
}

// Several reports whether the cluster has several control planes: their agents elect one that works.
func (d Desired) Several() bool { return len(d.Config.ControlPlanes()) > 1 }
