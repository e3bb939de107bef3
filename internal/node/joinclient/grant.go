// SPDX-License-Identifier: Apache-2.0

package joinclient

import (
	"crypto"
	"crypto/hpke"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"
	"time"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/core/handshake"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/roster"
)

// openGrant decodes and decrypts a grant, and checks that all of it belongs to the cluster with the pin.
func (j *joiner) openGrant(x *exchange, m *joinv1.Grant) (Grant, error) {
	ticket, err := plan.DecodeTicket(m.GetTicket())
	if err != nil {
		return Grant{}, protocolErrorf("%v", err)
	}
	switch id := j.Pin.ClusterID(); {
	case ticket.Cluster != id:
		return Grant{}, protocolErrorf("the ticket is for cluster %q, want %q", ticket.Cluster, id)
	case ticket.Plan.Node == "", j.Node != "" && ticket.Plan.Node != j.Node:
		return Grant{}, protocolErrorf("the ticket is for node %q, want %q", ticket.Plan.Node, j.Node)
	}
	g := Grant{Ticket: ticket, Endpoint: x.at}
	if sealed := m.GetSealed(); len(sealed) > 0 {
		if g.Secrets, err = j.unseal(x, ticket.Plan.Node, sealed); err != nil {
			return Grant{}, err
		}
	}
	return g, j.checkFiles(append(g.Ticket.Files[:len(g.Ticket.Files):len(g.Ticket.Files)], g.Secrets...))
}

// unseal decrypts a control plane's secrets. They must be sealed to this machine's key and to the node's name.
func (j *joiner) unseal(x *exchange, node string, sealed []byte) ([]plan.TicketFile, error) {
	key, err := hpke.NewDHKEMPrivateKey(x.sealKey)
	if err != nil {
		return nil, &localError{err}
	}
	pin, err := pin.OfKey(j.Key.Public())
	if err != nil {
		return nil, &localError{err}
	}
	text, err := hpke.Open(key, hpke.HKDFSHA256(), hpke.AES256GCM(), handshake.SealInfo(j.Pin.ClusterID(), node, pin), sealed)
	if err != nil {
		return nil, protocolErrorf("the secrets are not sealed to this machine")
	}
	files, err := plan.DecodeTicketFiles(text)
	if err != nil {
		return nil, protocolErrorf("the secrets cannot be decoded") // the error may quote them
	}
	return files, nil
}

// checkFiles checks the files that the node will trust later: the join CA's certificate must have the pin, and the join CA must have
// signed the roster.
func (j *joiner) checkFiles(files []plan.TicketFile) error {
	var ca *x509.Certificate
	for _, f := range files {
		if !strings.HasSuffix(f.Path, "/join-ca.crt") {
			continue
		}
		c, err := parseCertificate(f.Content)
		if err != nil {
			return protocolErrorf("%s: %v", f.Path, err)
		}
		if pin := pin.OfCertificate(c); pin != j.Pin {
			return protocolErrorf("%s has the pin %s, want %s", f.Path, pin, j.Pin)
		}
		ca = c
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Path, "/roster.json") {
			continue
		}
		if ca == nil {
			return protocolErrorf("the ticket has a roster but not the join CA's certificate")
		}
		var signed roster.Signed
		if err := json.Unmarshal(f.Content, &signed); err != nil {
			return protocolErrorf("%s: %v", f.Path, err)
		}
		if _, err := signed.Open(ca); err != nil {
			return protocolErrorf("%s: %v", f.Path, err)
		}
	}
	return nil
}

// checkCertificates checks that there is one certificate for each request, with the Want's name, that is valid now.
func checkCertificates(wants []pki.Want, requests, certificates map[string][]byte, now time.Time) error {
	if err := checkKeys(requests, certificates); err != nil {
		return err
	}
	for _, w := range wants {
		c, err := parseCertificate(certificates[w.Name])
		if err != nil || c.Subject.CommonName != w.CommonName || c.IsCA {
			return protocolErrorf("certificate %s is not for %q", w.Name, w.CommonName)
		}
		// Checked before the machine is claimed: nothing has to be undone.
		if now.Before(c.NotBefore) || now.After(c.NotAfter) {
			return &notValidNow{fmt.Sprintf("certificate %s is valid from %s to %s, but the local clock says %s", w.Name, timestamp(c.NotBefore), timestamp(c.NotAfter), timestamp(now))}
		}
	}
	return nil
}

// checkKeys checks that there is one certificate for the key of each request.
func checkKeys(requests, certificates map[string][]byte) error {
	if len(certificates) != len(requests) {
		return protocolErrorf("got %d certificates for %d requests", len(certificates), len(requests))
	}
	for name, request := range requests {
		r, err := x509.ParseCertificateRequest(request)
		if err != nil {
			return &localError{err}
		}
		c, err := parseCertificate(certificates[name])
		if err != nil {
			return protocolErrorf("certificate %s: %v", name, err)
		}
		key, ok := r.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
		if !ok || !key.Equal(c.PublicKey) {
			return protocolErrorf("certificate %s is for another key", name)
		}
	}
	return nil
}

// parseCertificate parses a PEM text that contains one certificate and nothing else.
func parseCertificate(text []byte) (*x509.Certificate, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" || strings.TrimSpace(string(rest)) != "" {
		return nil, protocolErrorf("want exactly one PEM certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}
