// SPDX-License-Identifier: Apache-2.0

// Package certtest makes keys, certificates and signed rosters for tests, valid for the hour around now. It writes no
// files, and is never part of what ships.
//
// Read [Authority] and [Sign].
//
//	joinCA := certtest.NewAuthority(t, "join CA")
//	server := joinCA.Server(t, "dev-main-0", net.IPv4(127, 0, 0, 1))
//	text := joinCA.Roster(t, roster.Roster{Cluster: joinCA.ClusterID(), Generation: 1})
package certtest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/roster"
)

// Key returns a new private key on P-256.
func Key(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

// Sign makes a certificate of a template as it is: it adds neither times nor usages. A parent that is the template
// itself makes a self-signed certificate.
func Sign(tb testing.TB, template, parent *x509.Certificate, public crypto.PublicKey, by crypto.Signer) *x509.Certificate {
	tb.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, by)
	if err != nil {
		tb.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	return cert
}

// Authority is a self-signed CA with its key, such as a cluster's join CA.
type Authority struct {
	Cert *x509.Certificate
	Key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority with a new key.
func NewAuthority(tb testing.TB, name string) Authority {
	tb.Helper()
	key := Key(tb)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	return Authority{Sign(tb, template, template, key.Public(), key), key}
}

// Pin returns the pin of the authority's key.
func (a Authority) Pin() pin.Pin { return pin.OfCertificate(a.Cert) }

// ClusterID returns the ID of the cluster whose join CA the authority is.
func (a Authority) ClusterID() string { return a.Pin().ClusterID() }

// PEM returns the authority's certificate.
func (a Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Cert.Raw})
}

// Server returns a server certificate with its chain.
func (a Authority) Server(tb testing.TB, name string, addresses ...net.IP) *tls.Certificate {
	tb.Helper()
	key := Key(tb)
	leaf := Sign(tb, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, IPAddresses: addresses,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, KeyUsage: x509.KeyUsageDigitalSignature,
	}, a.Cert, key.Public(), a.Key)
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw, a.Cert.Raw}, PrivateKey: key, Leaf: leaf}
}

// SignDigest returns the authority's signature of a digest.
func (a Authority) SignDigest(digest []byte) ([]byte, error) {
	return ecdsa.SignASN1(rand.Reader, a.Key, digest)
}

// Roster returns a roster signed by the authority, as nodes store it.
func (a Authority) Roster(tb testing.TB, r roster.Roster) []byte {
	tb.Helper()
	body, err := json.Marshal(r)
	if err != nil {
		tb.Fatal(err)
	}
	digest := roster.Digest(body)
	signature, err := a.SignDigest(digest[:])
	if err != nil {
		tb.Fatal(err)
	}
	text, err := json.Marshal(roster.Signed{Body: body, Signature: signature})
	if err != nil {
		tb.Fatal(err)
	}
	return text
}
