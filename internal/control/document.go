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
	"fmt"
	"net/netip"
	"slices"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/objects"
)

// Version is the wire version of Document.
const Version = 1

// Document is what the control role keeps: plain data, made by the operator from the spec. It holds no Secret: objects.Parse
// refuses one in an add-on. What else a user writes into an add-on, a ConfigMap for one, can be read on the node.
type Document struct {
	Version    int    `json:"version"`
	Cluster    string `json:"cluster"`
	RootCA     string `json:"rootCA"`     // path on the node of the CA that pods trust
	Kubeconfig string `json:"kubeconfig"` // path on the node: the role's own identity, for what it watches and keeps
	// ApplyKubeconfig is the path of an identity that may grant any right, for add-ons and seeds alone. Empty means Kubeconfig.
	ApplyKubeconfig string          `json:"applyKubeconfig,omitempty"`
	DNS             DNS             `json:"dns"`
	AddOns          []objects.AddOn `json:"addOns"` // in order; the cluster's own objects are the first
	Nodes           []Node          `json:"nodes"`
	Deployments     []Workload      `json:"deployments"` // the cluster is up only when these are available

	Self          string            `json:"self,omitempty"`          // the name of the node that keeps this document
	ControlPlanes int               `json:"controlPlanes,omitempty"` // with more than one, one of them is elected
	Pools         map[string]Pool   `json:"pools,omitempty"`         // by name: what a record's pool says of its node
	Records       []admission.Node  `json:"records,omitempty"`       // the spec's nodes, with the keys that are known
	Further       []string          `json:"further,omitempty"`       // host:port where the API is reached, too: a load balancer
	Config        []byte            `json:"config,omitempty"`        // the completed spec, by which nodes that join are planned
	Components    map[string]string `json:"components,omitempty"`    // name to digest: what they run
}

// Pool is what the nodes of one pool have in common.
type Pool struct {
	Roles  []string          `json:"roles"`
	Labels map[string]string `json:"labels,omitempty"`
	Taints []Taint           `json:"taints,omitempty"`
	// Machines has further labels of single machines, by name.
	Machines map[string]map[string]string `json:"machines,omitempty"`
}

// DNS is the cluster DNS as a client sees it.
type DNS struct {
	Address netip.Addr `json:"address"`
	Domain  string     `json:"domain"`
}

// Node is the machine's record: what the cluster says of a node, whatever its kubelet says.
type Node struct {
	Name      string            `json:"name"`
	Addresses []netip.Addr      `json:"addresses"`
	PodCIDR   netip.Prefix      `json:"podCIDR"`
	Labels    map[string]string `json:"labels,omitempty"`
	Taints    []Taint           `json:"taints,omitempty"`
}

// Taint keeps pods away from a node.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

// Workload names a Deployment.
type Workload struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
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
	return d, nil
}

func (d Document) applyKubeconfig() string {
	if d.ApplyKubeconfig != "" {
		return d.ApplyKubeconfig
	}
	return d.Kubeconfig
}

// carriers are the items of the add-ons that bring the deployments: before they are applied, an earlier deployment answers.
func (d Document) carriers() (refs []string) {
	for _, a := range d.AddOns {
		for _, o := range a.Objects {
			if o.Kind() == "Deployment" && slices.Contains(d.Deployments, Workload{o.Namespace(), o.Name()}) {
				refs = append(refs, itemAddOn(a.Name))
			}
		}
	}
	return refs
}

// elects tells whether several agents keep this document, of which one works.
func (d Document) elects() bool { return d.ControlPlanes > 1 }
