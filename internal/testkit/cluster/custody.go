// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"os"

	"github.com/slipway-project/slipway/internal/ca"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/pki"
)

// custody is the real custody of keys, on the machine's disk.
type custody struct {
	a     *agent
	local *ca.Local
}

func newCustody(a *agent) custody {
	return custody{a, &ca.Local{Now: a.now, Remote: func(ctx context.Context, w pki.Want, request []byte) ([]byte, error) {
		return a.enrol.Renew(ctx, w, request)
	}}}
}

// Request implements enrol.Custody.
func (c custody) Request(w pki.Want) (request []byte, finish func([]byte) error, err error) {
	request, done, err := c.local.Request(rebase(c.a.root, w))
	return request, func(certificate []byte) error {
		c.a.pass("finish " + w.Name)
		return done(certificate)
	}, err
}

// Sign implements joinserver.Signer.
func (c custody) Sign(w pki.Want, pub crypto.PublicKey) ([]byte, error) {
	c.a.pass("sign " + w.Name)
	if err := c.a.alive(); err != nil {
		return nil, err
	}
	return c.local.Sign(rebase(c.a.root, w), pub)
}

func (c custody) ensure(ctx context.Context, w pki.Want) error {
	c.a.pass("make " + w.Name)
	err := c.local.Ensure(ctx, rebase(c.a.root, w))
	if err == nil && w.Kind == pki.CA && c.a.alive() == nil {
		c.a.m.madeOnce(c.a, w.Name, certPin(c.a.root+w.CertPath))
	}
	return err
}

// certPin is the pin of the key in a certificate's file; empty: there is none.
func certPin(path string) pin.Pin {
	c := readCert(path)
	if c == nil {
		return ""
	}
	return pin.OfCertificate(c)
}

func readCert(path string) *x509.Certificate {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil
	}
	return c
}
