// SPDX-License-Identifier: Apache-2.0

package joinserver

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/asn1"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// sign answers certificate requests, by the names of their Wants: it signs all of them or, after the first bad one, none.
func (e *session) sign(ctx context.Context, p plan.Plan, requests map[string][]byte) (map[string][]byte, error) {
	wants := map[string]pki.Want{} // what the node cannot sign itself
	for _, entry := range p.Entries {
		if c, ok := entry.Item.(plan.Cert); ok && c.Want.Kind == pki.Leaf && c.Want.SignerKey == "" {
			wants[c.Want.Name] = c.Want
		}
	}
	if len(requests) > len(wants) {
		return nil, deny(BadWant, "it asks for %d certificates, its plan has %d", len(requests), len(wants))
	}
	names := slices.Sorted(maps.Keys(requests))
	keys, err := e.checkRequests(ctx, wants, names, requests)
	if err != nil {
		return nil, err
	}
	certificates := make(map[string][]byte, len(names))
	for i, name := range names {
		err := e.work(ctx, func() error {
			text, err := e.Signer.Sign(wants[name], keys[i])
			certificates[name] = text
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("sign %s for node %s: %w", name, e.node.Name, err)
		}
	}
	for i, name := range names {
		e.audit(Certified, fmt.Sprintf("%s %q for %s", name, wants[name].CommonName, pinOf(keys[i])))
	}
	return certificates, nil
}

// checkRequests returns the key of each request, in the order of names.
func (e *session) checkRequests(ctx context.Context, wants map[string]pki.Want, names []string, requests map[string][]byte) ([]*ecdsa.PublicKey, error) {
	keys := make([]*ecdsa.PublicKey, len(names))
	seen := map[pin.Pin]string{}
	for i, name := range names {
		if _, ok := wants[name]; !ok {
			return nil, deny(BadWant, "its plan has no certificate %.80q for this service to sign", name)
		}
		err := e.work(ctx, func() (err error) {
			keys[i], err = checkRequest(requests[name])
			return err
		})
		if err != nil {
			return nil, err
		}
		key := pinOf(keys[i])
		if other, twice := seen[key]; twice {
			return nil, deny(KeyTaken, "the requests for %s and %s have the same key", other, name)
		}
		seen[key] = name
		if err := e.checkNoMachineKey(ctx, key, name); err != nil {
			return nil, err
		}
	}
	for i, name := range names { // only after all requests are good
		if !e.certified.add(pinOf(keys[i]), owner{e.node.Key, name}) {
			return nil, deny(KeyTaken, "the key for %s has a certificate for another purpose or node", name)
		}
	}
	return keys, nil
}

// checkNoMachineKey refuses a key that identifies a machine. A key serves one purpose of one node, which limits the damage if it is
// stolen.
func (e *session) checkNoMachineKey(ctx context.Context, key pin.Pin, name string) error {
	if key == e.peer.Key || key == e.Self {
		return deny(KeyTaken, "the request for %s has the key of a machine", name)
	}
	other, found, known := e.nodes.byKey(key)
	if !known { // the list spares a question to the store for each certificate
		var err error
		if other, found, err = e.Records.ByKey(ctx, key); err != nil {
			return fmt.Errorf("look for the key of %s in the records: %w", name, err)
		}
	}
	if found {
		return deny(KeyTaken, "the request for %s has the key of node %s", name, other.Name)
	}
	return nil
}

func pinOf(key *ecdsa.PublicKey) pin.Pin {
	p, err := pin.OfKey(key)
	if err != nil {
		panic("joinserver: encode a parsed key: " + err.Error())
	}
	return p
}

// maxRequest is more than an empty request for a P-256 key needs, and less than one for a huge key.
const maxRequest = 1024

// emptyName is the DER of an X.501 name without any part.
const emptyName = "\x30\x00"

// checkRequest returns the public key of a certificate request, which must contain nothing else. It verifies the signature last,
// and only for the one kind of key that it accepts: other checks are cheaper.
func checkRequest(der []byte) (*ecdsa.PublicKey, error) {
	if len(der) == 0 || len(der) > maxRequest {
		return nil, deny(BadRequest, "certificate request of %d bytes, want at most %d", len(der), maxRequest)
	}
	r, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, deny(BadRequest, "parse certificate request: %v", err)
	}
	key, ok := r.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, deny(BadKey, "certificate request for a key of %s (%T), want ECDSA P-256", r.PublicKeyAlgorithm, r.PublicKey)
	}
	if string(r.RawSubject) != emptyName {
		return nil, deny(BadSubject, "certificate request with subject %q, want none", r.Subject.String())
	}
	if !bytes.Equal(r.RawTBSCertificateRequest, emptyRequest(r.RawSubjectPublicKeyInfo)) {
		return nil, deny(BadExtension, "certificate request with more than a key: %d extensions, names %.80q", len(r.Extensions), r.DNSNames)
	}
	if r.SignatureAlgorithm != x509.ECDSAWithSHA256 {
		return nil, deny(BadProof, "certificate request signed with %s, want %s", r.SignatureAlgorithm, x509.ECDSAWithSHA256)
	}
	if err := r.CheckSignature(); err != nil {
		return nil, deny(BadProof, "certificate request not signed with its key: %v", err)
	}
	return key, nil
}

// emptyRequest returns the signed part of a request for this key without subject and attributes. Comparing all its bytes finds
// fields that the parser ignores.
func emptyRequest(spki []byte) []byte {
	der, err := asn1.Marshal(struct {
		Version    int
		Subject    asn1.RawValue
		Key        asn1.RawValue
		Attributes asn1.RawValue
	}{0, asn1.RawValue{FullBytes: []byte(emptyName)}, asn1.RawValue{FullBytes: spki}, asn1.RawValue{FullBytes: []byte("\xa0\x00")}})
	if err != nil {
		return nil
	}
	return der
}

// maxCertified bounds the memory of certifiedKeys: two certificates of some thousand nodes.
const maxCertified = 16384

// owner is what a key was certified for.
type owner struct {
	node pin.Pin // of the node's machine
	want string
}

// certifiedKeys remembers for which purpose this process has certified a key, until it restarts. It is a second line of defence: a
// requester must have the key, and a node's certificates contain only the node's own names.
type certifiedKeys struct {
	mu     sync.Mutex // guards the fields below
	owners map[pin.Pin]owner
	order  []pin.Pin // the oldest first
}

// add sets the owner of a key. It returns false if the key has another owner.
func (c *certifiedKeys) add(key pin.Pin, o owner) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.owners[key]; ok {
		return old == o
	}
	if len(c.order) == maxCertified {
		delete(c.owners, c.order[0])
		c.order = c.order[1:]
	}
	c.owners[key] = o
	c.order = append(c.order, key)
	return true
}
