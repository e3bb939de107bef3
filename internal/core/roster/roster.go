// SPDX-License-Identifier: Apache-2.0

// Package roster defines the signed list by which nodes find the control planes and each other without DNS: the endpoints of
// the API and of the join service, and each node's address and pod CIDR. It computes, compares and verifies rosters.
// control/rosters signs and publishes them, node/joinclient receives them.
//
// Read [Roster], [From] and [Signed.Open].
//
//	Roster{Cluster: "…", Generation: 7, API: ["10.89.0.10:6443"], Nodes: [{"dev-main-0", 10.89.0.10, 10.244.0.0/24}]}
package roster

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/pin"
)

// Ports of every control plane.
const (
	APIPort  = 6443
	JoinPort = 9440
)

// RouteProtocol is the protocol number of the kernel routes that nodes add for the roster. No other program is registered for
// it in /etc/iproute2/rt_protos.
const RouteProtocol = 0x5d

// Roster is what a node has to know about its cluster.
type Roster struct {
	Cluster    string           `json:"cluster"`         // the cluster's ID
	Generation uint64           `json:"generation"`      // grows with each published roster
	API        []netip.AddrPort `json:"api"`             // the API servers, sorted
	Join       []netip.AddrPort `json:"join"`            // the join services, sorted
	Extra      []string         `json:"extra,omitempty"` // host:port of the spec's load balancer, if any: tried last
	Nodes      []Node           `json:"nodes"`           // sorted by name
}

// Node is a node with its address and pod CIDR.
type Node struct {
	Name    string       `json:"name"`
	Address netip.Addr   `json:"address"`
	PodCIDR netip.Prefix `json:"podCIDR"`
}

// From computes the roster from a cluster's records. Its endpoints are the control planes whose etcd member is a voter; a
// control plane that is being removed is an endpoint only if there is no other. Its nodes are all that have an address and a
// pod CIDR. The generation is zero. A roster without endpoints must not be published, see [Roster.Usable].
func From(cluster string, nodes []admission.Node, voters, extra []string) Roster {
	r := Roster{Cluster: cluster, API: []netip.AddrPort{}, Join: []netip.AddrPort{}, Extra: slices.Clone(extra), Nodes: []Node{}}
	var staying, leaving []netip.Addr
	for _, n := range nodes {
		address := n.Address.Unmap()
		if !address.IsValid() {
			continue // it has not joined yet
		}
		if slices.Contains(voters, n.Name) {
			if n.Removing {
				leaving = append(leaving, address)
			} else {
				staying = append(staying, address)
			}
		}
		if n.PodCIDR.IsValid() {
			r.Nodes = append(r.Nodes, Node{n.Name, address, n.PodCIDR.Masked()})
		}
	}
	if len(staying) == 0 {
		staying = leaving
	}
	slices.SortFunc(staying, netip.Addr.Compare)
	for _, a := range slices.Compact(staying) {
		r.API = append(r.API, netip.AddrPortFrom(a, APIPort))
		r.Join = append(r.Join, netip.AddrPortFrom(a, JoinPort))
	}
	slices.SortFunc(r.Nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	return r
}

// Usable reports whether nodes can find the cluster with this roster.
func (r Roster) Usable() bool { return len(r.API) > 0 && len(r.Join) > 0 }

// Same reports whether two rosters are equal except for their generations.
func (r Roster) Same(o Roster) bool {
	return r.Cluster == o.Cluster && slices.Equal(r.API, o.API) && slices.Equal(r.Join, o.Join) &&
		slices.Equal(r.Extra, o.Extra) && slices.Equal(r.Nodes, o.Nodes)
}

// Signed is a roster as it is sent and stored. Body has exactly the signed bytes.
type Signed struct {
	Body      []byte `json:"body"`      // Roster, JSON
	Signature []byte `json:"signature"` // ECDSA in ASN.1 by the join CA, of Digest(Body)
}

// Digest returns what the join CA signs: SHA-256 of "slipway roster v1\x00" and the body.
func Digest(body []byte) [sha256.Size]byte {
	return sha256.Sum256(append([]byte("slipway roster v1\x00"), body...))
}

// Open verifies the signature, then decodes the body. It refuses unknown fields and the roster of another cluster.
func (s Signed) Open(ca *x509.Certificate) (Roster, error) {
	key, ok := ca.PublicKey.(*ecdsa.PublicKey)
	if !ok {
		return Roster{}, errors.New("open roster: the join CA's key is not ECDSA")
	}
	digest := Digest(s.Body)
	if !ecdsa.VerifyASN1(key, digest[:], s.Signature) {
		return Roster{}, errors.New("open roster: it is not signed by this cluster's join CA")
	}
	var r Roster
	strict := json.NewDecoder(bytes.NewReader(s.Body))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&r); err != nil {
		return Roster{}, fmt.Errorf("open roster: %w", err)
	}
	if want := pin.OfCertificate(ca).ClusterID(); r.Cluster != want {
		return Roster{}, fmt.Errorf("open roster: it belongs to cluster %s, want %s", r.Cluster, want)
	}
	return r, nil
}
