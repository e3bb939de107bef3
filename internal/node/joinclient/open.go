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

// open reads a grant and checks that all of it is of the cluster with our pin.
func (j *joining) open(t *talk, m *joinv1.Grant) (Grant, error) {
	ticket, err := plan.DecodeTicket(m.GetTicket())
	if err != nil {
		return Grant{}, odd("%v", err)
	}
	switch id := j.Pin.ClusterID(); {
	case ticket.Cluster != id:
		return Grant{}, odd("its ticket is of cluster %q, not of %s", ticket.Cluster, id)
	case ticket.Plan.Node == "", j.Node != "" && ticket.Plan.Node != j.Node:
		return Grant{}, odd("its ticket is of node %q, not of %q", ticket.Plan.Node, j.Node)
	}
	g := Grant{Ticket: ticket, Endpoint: t.at}
	if sealed := m.GetSealed(); len(sealed) > 0 {
		if g.Secrets, err = j.unseal(t, ticket.Plan.Node, sealed); err != nil {
			return Grant{}, err
		}
	}
	return g, j.checkFiles(append(g.Ticket.Files[:len(g.Ticket.Files):len(g.Ticket.Files)], g.Secrets...))
}

func (j *joining) unseal(t *talk, node string, sealed []byte) ([]plan.TicketFile, error) {
	key, err := hpke.NewDHKEMPrivateKey(t.sealKey)
	if err != nil {
		return nil, &local{err}
	}
	pin, err := pin.OfKey(j.Key.Public())
	if err != nil {
		return nil, &local{err}
	}
	text, err := hpke.Open(key, hpke.HKDFSHA256(), hpke.AES256GCM(), handshake.SealInfo(j.Pin.ClusterID(), node, pin), sealed)
	if err != nil {
		return nil, odd("its secrets are not sealed to this machine")
	}
	files, err := plan.DecodeTicketFiles(text)
	if err != nil {
		return nil, odd("its secrets cannot be read") // the error may quote them
	}
	return files, nil
}

// checkFiles holds what leads the node later to the pin that it has now: the join CA's certificate, and what that has signed.
func (j *joining) checkFiles(files []plan.TicketFile) error {
	var ca *x509.Certificate
	for _, f := range files {
		if !strings.HasSuffix(f.Path, "/join-ca.crt") {
			continue
		}
		c, err := parseCertificate(f.Content)
		if err != nil {
			return odd("%s: %v", f.Path, err)
		}
		if pin := pin.OfCertificate(c); pin != j.Pin {
			return odd("%s has the pin %s, not %s", f.Path, pin, j.Pin)
		}
		ca = c
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Path, "/roster.json") {
			continue
		}
		if ca == nil {
			return odd("it brings a roster without the join CA's certificate")
		}
		var signed roster.Signed
		if err := json.Unmarshal(f.Content, &signed); err != nil {
			return odd("%s: %v", f.Path, err)
		}
		if _, err := signed.Open(ca); err != nil {
			return odd("%s: %v", f.Path, err)
		}
	}
	return nil
}

// checkCertificates wants one certificate for each request, with the Want's name.
func checkCertificates(wants []pki.Want, requests, certificates map[string][]byte, now time.Time) error {
	if err := checkKeys(requests, certificates); err != nil {
		return err
	}
	for _, w := range wants {
		c, err := parseCertificate(certificates[w.Name])
		if err != nil || c.Subject.CommonName != w.CommonName || c.IsCA {
			return odd("certificate %s is not of %q", w.Name, w.CommonName)
		}
		if now.Before(c.NotBefore) || now.After(c.NotAfter) { // before the machine is claimed: nothing has to be undone
			return &early{fmt.Sprintf("certificate %s was signed for the time from %s to %s, and the clock here says %s", w.Name, stamp(c.NotBefore), stamp(c.NotAfter), stamp(now))}
		}
	}
	return nil
}

// checkKeys wants one certificate for the key of each request.
func checkKeys(requests, certificates map[string][]byte) error {
	if len(certificates) != len(requests) {
		return odd("it sends %d certificates for %d requests", len(certificates), len(requests))
	}
	for name, request := range requests {
		r, err := x509.ParseCertificateRequest(request)
		if err != nil {
			return &local{err}
		}
		c, err := parseCertificate(certificates[name])
		if err != nil {
			return odd("certificate %s: %v", name, err)
		}
		key, ok := r.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
		if !ok || !key.Equal(c.PublicKey) {
			return odd("certificate %s is for another key", name)
		}
	}
	return nil
}

// parseCertificate reads a PEM text with one certificate and nothing else.
func parseCertificate(text []byte) (*x509.Certificate, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" || strings.TrimSpace(string(rest)) != "" {
		return nil, odd("not one certificate in PEM")
	}
	return x509.ParseCertificate(block.Bytes)
}
