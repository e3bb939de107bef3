// SPDX-License-Identifier: Apache-2.0

package etcdtest

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/slipway-project/slipway/internal/certtest"
)

// pki is one CA, and one certificate that is good for all nodes of a lab as server, peer and client.
type pki struct {
	ca, cert, key string
	tls           *tls.Config
}

func newPKI(t testing.TB, dir string, address func(node string) string) pki {
	t.Helper()
	root, caKey := certtest.CA(t, "etcd-ca")
	leafKey := certtest.Key(t)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "etcd"}, NotBefore: root.NotBefore, NotAfter: root.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	leaf.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} // etcd compares a peer's certificate with the address that it comes from
	for c := 'a'; c <= 'j'; c++ {
		leaf.IPAddresses = append(leaf.IPAddresses, net.ParseIP(address(string(c))))
	}
	leafDER := certtest.Sign(t, leaf, root, leafKey.Public(), caKey).Raw
	keyDER, err := x509.MarshalECPrivateKey(leafKey)
	if err != nil {
		t.Fatal(err)
	}
	p := pki{
		ca:   write(t, dir, "ca.crt", "CERTIFICATE", root.Raw),
		cert: write(t, dir, "leaf.crt", "CERTIFICATE", leafDER),
		key:  write(t, dir, "leaf.key", "EC PRIVATE KEY", keyDER),
	}
	roots := x509.NewCertPool()
	roots.AddCert(root)
	p.tls = &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: roots,
		Certificates: []tls.Certificate{{Certificate: [][]byte{leafDER}, PrivateKey: leafKey}},
	}
	return p
}

func write(t testing.TB, dir, name, kind string, der []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
