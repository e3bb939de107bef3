// SPDX-License-Identifier: Apache-2.0

package etcdtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// pki is one CA, and one certificate that is good for all nodes of a lab as server, peer and client.
type pki struct {
	ca, cert, key string
	tls           *tls.Config
}

func newPKI(t testing.TB, dir string, address func(node string) string) pki {
	t.Helper()
	caKey, leafKey := newKey(t), newKey(t)
	from, to := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "etcd-ca"}, NotBefore: from, NotAfter: to,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "etcd"}, NotBefore: from, NotAfter: to,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	leaf.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} // etcd compares a peer's certificate with the address that it comes from
	for c := 'a'; c <= 'j'; c++ {
		leaf.IPAddresses = append(leaf.IPAddresses, net.ParseIP(address(string(c))))
	}
	caDER := sign(t, ca, ca, &caKey.PublicKey, caKey)
	leafDER := sign(t, leaf, ca, &leafKey.PublicKey, caKey)
	keyDER, err := x509.MarshalECPrivateKey(leafKey)
	if err != nil {
		t.Fatal(err)
	}
	p := pki{
		ca:   write(t, dir, "ca.crt", "CERTIFICATE", caDER),
		cert: write(t, dir, "leaf.crt", "CERTIFICATE", leafDER),
		key:  write(t, dir, "leaf.key", "EC PRIVATE KEY", keyDER),
	}
	root, err := x509.ParseCertificate(caDER)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(root)
	p.tls = &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: roots,
		Certificates: []tls.Certificate{{Certificate: [][]byte{leafDER}, PrivateKey: leafKey}},
	}
	return p
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t testing.TB, c, parent *x509.Certificate, pub *ecdsa.PublicKey, by *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, c, parent, pub, by)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func write(t testing.TB, dir, name, kind string, der []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
