// SPDX-License-Identifier: Apache-2.0

// Package control is the control role: it applies the cluster's objects, approves the kubelets' serving certificates, and sets the
// labels, taints and pod CIDR of each Node, which kubelets must not set themselves. It runs inside the agent of a control plane; only
// main connects it with the rest of the agent. It never plans for a machine and never trusts what a kubelet reports about its node.
//
// Read [Document] (its input) and [Role.Run].
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

// Document is the input of the control role. It contains only what the operator provided; [Document.Desired] computes the rest. It
// contains no Secret, because objects.Parse refuses one in an add-on. Other objects of add-ons, such as a ConfigMap, can be read on
// the node.
type Document struct {
	Version    int               `json:"version"`
	Cluster    string            `json:"cluster"`
	Self       string            `json:"self"`                 // the name of the node that stores this document
	Spec       []byte            `json:"spec"`                 // completed, with the placement of units; nodes that join are planned from it
	Components map[string]string `json:"components,omitempty"` // name to digest, of what the nodes run
	Records    []admission.Node  `json:"records"`              // the spec's nodes, with the keys that are known
}

// Desired is the state that the control role maintains in the cluster. It is computed from a [Document].
type Desired struct {
	Document
	Config  config.Cluster
	Release catalog.Release
	AddOns  []objects.AddOn // in order; the first contains the cluster's own objects
}

// Desired computes the desired state from the document.
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

// Node is what the cluster's records say about a node. It takes precedence over what the kubelet reports.
type Node struct {
	Name      string            `json:"name"`
	Addresses []netip.Addr      `json:"addresses"`
	PodCIDR   netip.Prefix      `json:"podCIDR"`
	Labels    map[string]string `json:"labels,omitempty"`
	Taints    []machine.Taint   `json:"taints,omitempty"`
}

// Decode decodes a document. It refuses unknown versions and unknown fields.
func Decode(data []byte) (Document, error) {
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return Document{}, fmt.Errorf("decode control document: %w", err)
	}
	if head.Version != Version {
		return Document{}, fmt.Errorf("decode control document: version %d, want %d (use the same version of slipway on the operator's machine and on the nodes)", head.Version, Version)
	}
	var d Document
	strict := json.NewDecoder(bytes.NewReader(data))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&d); err != nil {
		return Document{}, fmt.Errorf("decode control document: %w", err)
	}
	if d.Self == "" {
		return Document{}, errors.New("decode control document: the field self is empty (run slipway up again with this version of slipway)")
	}
	return d, nil
}

// pool returns a pool of the spec by name.
func (d Desired) pool(name string) (config.Pool, bool) {
	i := slices.IndexFunc(d.Config.Pools, func(p config.Pool) bool { return p.Name == name })
	if i < 0 {
		return config.Pool{}, false
	}
	return d.Config.Pools[i], true
}

// node returns the Node for a record.
func (d Desired) node(rec admission.Node) Node {
	out := Node{Name: rec.Name, PodCIDR: rec.PodCIDR}
	if rec.Address.IsValid() {
		out.Addresses = []netip.Addr{rec.Address}
	}
	p, ok := d.pool(rec.Pool)
	if !ok {
		return out
	}
	var labels map[string]string
	if i := slices.IndexFunc(p.Nodes, func(n config.NodeName) bool { return n.Name == rec.Name }); i >= 0 {
		labels = p.Nodes[i].Labels
	}
	out.Labels, out.Taints = machine.NodeLabels(p.Roles, p.Labels, labels), p.Taints
	return out
}

// IsControlPlane reports whether the record belongs to a control plane. known is false if the spec does not have its pool.
func (d Desired) IsControlPlane(rec admission.Node) (is, known bool) {
	p, known := d.pool(rec.Pool)
	return p.Has(config.RoleControlPlane), known
}

// Several reports whether the cluster has several control planes. Their agents elect a leader, which does the work.
func (d Desired) Several() bool { return len(d.Config.ControlPlanes()) > 1 }
