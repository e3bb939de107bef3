// SPDX-License-Identifier: Apache-2.0

// Package roster is the signed list by which nodes find each other without DNS: where the API is, and which node has which
// share of the pod range. It is data and its checks; who signs, sends and stores it is elsewhere.
//
// Read [Roster] and [Signed.Open].
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

	"github.com/slipway-project/slipway/internal/core/pin"
)

// RouteProtocol marks the kernel's routes that nodes set by the roster. Nobody has registered it, see /etc/iproute2/rt_protos.
const RouteProtocol = 0x5d

// Roster is the cluster as its nodes have to know it.
type Roster struct {
	Cluster    string           `json:"cluster"` // the cluster's id
	Generation uint64           `json:"generation"`
	API        []netip.AddrPort `json:"api"`             // the API servers, sorted
	Join       []netip.AddrPort `json:"join"`            // the join services, sorted
	Extra      []string         `json:"extra,omitempty"` // a load balancer's host:port, if the spec names one: asked last
	Nodes      []Node           `json:"nodes"`           // sorted by name
}

// Node is one line of it.
type Node struct {
	Name    string       `json:"name"`
	Address netip.Addr   `json:"address"`
	PodCIDR netip.Prefix `json:"podCIDR"`
}

// Signed is a roster as it travels and is stored. Body is what was signed, byte for byte.
type Signed struct {
	Body      []byte `json:"body"`      // Roster, JSON
	Signature []byte `json:"signature"` // ECDSA, ASN.1, over SHA-256 of "slipway roster v1\0" and Body, by the join CA's key
}

// Digest is what is signed.
func Digest(body []byte) [sha256.Size]byte {
	return sha256.Sum256(append([]byte("slipway roster v1\x00"), body...))
}

// Open checks the signature and only then reads the body.
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
		return Roster{}, fmt.Errorf("open roster: it is of cluster %s, not of %s", r.Cluster, want)
	}
	return r, nil
}
