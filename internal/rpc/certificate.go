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

const maxCertificate = 4096 // bytes; one with a key and a name has about 400

// SelfSigned is a certificate that carries only a key. Whoever checks it must check the key; name and times say nothing. The
// times are wide, for either clock may be wrong.
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
		return nil, fmt.Errorf("sign the certificate of %s: %w", name, err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read the certificate of %s: %w", name, err)
	}
	if err := checkKey(leaf); err != nil {
		return nil, fmt.Errorf("make the certificate of %s: %w", name, err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

// checkKey lets only keys pass that are cheap to use and have exactly one encoding, for a key's pin is an identity.
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
		return errors.New("the certificate's key is encoded in an unusual way")
	}
	return nil
}
