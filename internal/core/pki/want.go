// SPDX-License-Identifier: Apache-2.0

// Package pki describes which certificates and keys must exist. It creates none: package ca creates key material on the
// node, and it never passes through this package.
//
// Read [Want] first, then [ControlPlane] and [Worker], which are the cluster's whole certificate table as data.
//
//	Want{Name: "apiserver", Kind: Leaf, Signer: "ca", CommonName: "kube-apiserver", Usages: []Usage{ServerAuth}, …}
package pki

import (
	"net/netip"
	"time"
)

// Kind is the kind of key material that a Want describes.
type Kind string

// The kinds of key material. The list is closed.
const (
	CA      Kind = "CA"      // a self-signed certificate authority: certificate and key
	Leaf    Kind = "Leaf"    // a certificate signed by the Want named in Signer, and its key
	KeyPair Kind = "KeyPair" // a bare key pair, for service-account tokens: private and public PEM
	Secret  Kind = "Secret"  // 32 random bytes, raw, for encryption at rest; only KeyPath is used
)

// Usage is an extended key usage of a Leaf.
type Usage string

// The usages that the cluster needs.
const (
	ServerAuth Usage = "server auth"
	ClientAuth Usage = "client auth"
)

// Want is a certificate or key that must exist on a node. It is plain data, safe to print, and holds no secret.
// Keys are ECDSA P-256, files 0600 from creation; certificates 0644.
type Want struct {
	Name          string        `json:"name"`
	Kind          Kind          `json:"kind"`
	Signer        string        `json:"signer,omitempty"` // name of the signing CA's Want; empty unless Kind is Leaf
	CommonName    string        `json:"commonName,omitempty"`
	Organizations []string      `json:"organizations,omitempty"`
	DNSNames      []string      `json:"dnsNames,omitempty"`
	Addresses     []netip.Addr  `json:"addresses,omitempty"`
	Usages        []Usage       `json:"usages,omitempty"`
	Lifetime      time.Duration `json:"lifetime,omitempty"` // from issue to expiry; the signer may backdate
	CertPath      string        `json:"certPath,omitempty"` // certificate, or public key of a KeyPair
	KeyPath       string        `json:"keyPath"`
	SignerCert    string        `json:"signerCert,omitempty"` // the signer's CertPath and KeyPath on a node that holds the CA;
	SignerKey     string        `json:"signerKey,omitempty"`  // empty: a remote signer signs
	// Permit is a file that must exist when a CA, a key pair or a secret is created, because these must not be created twice:
	// without it, creation fails. Init writes the file on the bootstrap node; a machine that joins never has it.
	Permit string `json:"permit,omitempty"`
}

// RenewAt returns when a certificate that is valid in the given window is renewed: after two thirds of its lifetime, or
// earlier by up to a fifteenth of it. The serial number decides, so that certificates which were issued together on all
// machines are not renewed together.
func RenewAt(notBefore, notAfter time.Time, serial []byte) time.Time {
	life := notAfter.Sub(notBefore)
	var n uint32
	for _, b := range serial[max(0, len(serial)-2):] {
		n = n<<8 | uint32(b)
	}
	return notBefore.Add(life/3*2 - life/15/(1<<16)*time.Duration(n))
}
