// SPDX-License-Identifier: Apache-2.0

// Package certtest makes keys and certificates for tests, good for the hour around now. It writes no files, and is never part of
// what ships.
//
// Read [CA] and [Sign].
//
//	ca, key := certtest.CA(t, "join CA")
//	leaf := certtest.Sign(t, template, ca, certtest.Key(t).Public(), key)
package certtest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"testing"
	"time"
)

// Key is a new one on P-256.
func Key(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

// Sign makes a certificate of a template as it is: neither times nor usages are added. A parent that is the template itself makes
// a self-signed one.
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

// CA is a self-signed authority with a key of its own.
func CA(tb testing.TB, name string) (*x509.Certificate, *ecdsa.PrivateKey) {
	tb.Helper()
	key := Key(tb)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	return Sign(tb, template, template, key.Public(), key), key
}
