// SPDX-License-Identifier: Apache-2.0

package joinserver

import (
	"context"
	"crypto/ecdsa"
	"fmt"
	"maps"
	"slices"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// sign answers requests for certificates: all of them or, at the first bad one, none.
func (e *session) sign(ctx context.Context, p plan.Plan, requests map[string][]byte) (map[string][]byte, error) {
	wants := remote(p)
	if len(requests) > len(wants) {
		return nil, deny(BadWant, "it asks for %d certificates, its plan leaves %d to us", len(requests), len(wants))
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

// checkRequests gives the key of each request, in the order of names.
func (e *session) checkRequests(ctx context.Context, wants map[string]pki.Want, names []string, requests map[string][]byte) ([]*ecdsa.PublicKey, error) {
	keys := make([]*ecdsa.PublicKey, len(names))
	seen := map[pin.Pin]string{}
	for i, name := range names {
		if _, ok := wants[name]; !ok {
			return nil, deny(BadWant, "its plan has no certificate %.80q that we sign", name)
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
			return nil, deny(KeyTaken, "%s and %s are asked for with one key", other, name)
		}
		seen[key] = name
		if err := e.checkFree(ctx, key, name); err != nil {
			return nil, err
		}
	}
	for i, name := range names { // all are good: now they are this node's
		if !e.used.take(pinOf(keys[i]), owner{e.node.Key, name}) {
			return nil, deny(KeyTaken, "the key for %s was certified for something else before", name)
		}
	}
	return keys, nil
}

// checkFree: a key serves one purpose of one node, so that what is revoked or stolen ends there.
func (e *session) checkFree(ctx context.Context, key pin.Pin, name string) error {
	if key == e.peer.Key || key == e.Self {
		return deny(KeyTaken, "%s is asked for with the key of a machine", name)
	}
	other, found, err := e.machine(ctx, key)
	switch {
	case err != nil:
		return fmt.Errorf("look for the key of %s: %w", name, err)
	case found:
		return deny(KeyTaken, "%s is asked for with the key of node %s", name, other.Name)
	}
	return nil
}

// machine finds the record of a machine in the list that Run keeps: a question to the store for each certificate would be dear.
func (s *Server) machine(ctx context.Context, key pin.Pin) (admission.Node, bool, error) {
	if node, found, known := s.standing.find(key); known {
		return node, found, nil
	}
	return s.Records.ByKey(ctx, key)
}

// remote are the certificates that a plan leaves to the join service: what the node itself cannot sign.
func remote(p plan.Plan) map[string]pki.Want {
	wants := map[string]pki.Want{}
	for _, entry := range p.Entries {
		if c, ok := entry.Item.(plan.Cert); ok && c.Want.Kind == pki.Leaf && c.Want.SignerKey == "" {
			wants[c.Want.Name] = c.Want
		}
	}
	return wants
}

func pinOf(key *ecdsa.PublicKey) pin.Pin {
	p, err := pin.OfKey(key)
	if err != nil {
		panic("joinserver: a key that was parsed cannot be written: " + err.Error())
	}
	return p
}
