// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// ClientAuth says which client certificate a server requires.
type ClientAuth int

// The zero value admits no client, so that forgetting to set it is safe.
const (
	NoClients ClientAuth = iota + 1 // no client certificate: the calls themselves identify the caller
	AnyKey                          // exactly one certificate; its key is the identity, everything else in it is ignored
)

const (
	maxCertificate = 4096 // bytes; a certificate with a key and a name has about 400
	maxServerName  = 253  // bytes; the longest name in DNS
)

// ServerTLS returns a configuration for TLS 1.3 with ALPN "h2" and without session tickets. It calls certificate at each
// handshake, so that a renewed certificate is used at once.
func ServerTLS(certificate func() (*tls.Certificate, error), clients ClientAuth) *tls.Config {
	c := baseTLS()
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate() }
	c.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) { // runs before anything is computed
		if len(h.ServerName) > maxServerName {
			return nil, fmt.Errorf("the requested server name has %d bytes", len(h.ServerName))
		}
		return nil, nil
	}
	c.ClientAuth = tls.NoClientCert
	if clients != NoClients {
		c.ClientAuth = tls.RequireAnyClientCert
	}
	c.VerifyConnection = func(s tls.ConnectionState) error { return checkClient(s, clients) }
	return c
}

func baseTLS() *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{alpn},
		CurvePreferences:       []tls.CurveID{tls.X25519MLKEM768, tls.X25519, tls.CurveP256},
		SessionTicketsDisabled: true,
		Renegotiation:          tls.RenegotiateNever,
	}
}

// checkClient runs before the client's signature is verified, so that an unsuitable key costs no computation.
func checkClient(s tls.ConnectionState, clients ClientAuth) error {
	if s.NegotiatedProtocol != alpn {
		return fmt.Errorf("the client does not offer the protocol %s (ALPN)", alpn)
	}
	if s.DidResume {
		return errors.New("the client resumes a session")
	}
	switch n := len(s.PeerCertificates); {
	case clients == NoClients && n == 0:
		return nil
	case clients != AnyKey:
		return fmt.Errorf("the server accepts no client certificates, got %d", n)
	case n != 1:
		return fmt.Errorf("the client presents %d certificates, want exactly one", n)
	}
	return checkKey(s.PeerCertificates[0])
}

// SelfSigned returns a certificate that only carries a key. Verifiers must check the key; name and validity mean nothing. The
// validity period is long because either side's clock may be wrong.
func SelfSigned(key crypto.Signer, name string, now time.Time) (*tls.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("choose a serial number: %w", err)
	}
	template := x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.AddDate(-1, 0, 0),
		NotAfter:              now.AddDate(10, 0, 0),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate %s: %w", name, err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse certificate %s: %w", name, err)
	}
	if err := checkKey(leaf); err != nil {
		return nil, fmt.Errorf("make certificate %s: %w", name, err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

// checkKey accepts only keys that are cheap to use and have exactly one encoding, because the hash of a key is an identity.
func checkKey(c *x509.Certificate) error {
	if len(c.Raw) > maxCertificate {
		return fmt.Errorf("the certificate has %d bytes, more than %d", len(c.Raw), maxCertificate)
	}
	switch key := c.PublicKey.(type) {
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() {
			return fmt.Errorf("the certificate's key is on the curve %s, not on P-256", key.Curve.Params().Name)
		}
	case ed25519.PublicKey:
	default:
		return fmt.Errorf("the certificate's key is %s, not ECDSA P-256 or Ed25519", c.PublicKeyAlgorithm)
	}
	canonical, err := x509.MarshalPKIXPublicKey(c.PublicKey)
	if err != nil {
		return fmt.Errorf("encode the certificate's key: %w", err)
	}
	if !bytes.Equal(canonical, c.RawSubjectPublicKeyInfo) {
		return errors.New("the certificate's key is not in its canonical encoding")
	}
	return nil
}
