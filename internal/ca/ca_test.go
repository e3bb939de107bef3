// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/core/pki"
)

var start = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

const year = 365 * 24 * time.Hour

func at(t time.Time) *Local { return &Local{Now: func() time.Time { return t }} }

func authority(dir, name string) pki.Want {
	return pki.Want{
		Name: name, Kind: pki.CA, CommonName: "dev " + name, Lifetime: 10 * year,
		CertPath: filepath.Join(dir, name+".crt"), KeyPath: filepath.Join(dir, name+".key"),
	}
}

func leaf(dir, name string, signer pki.Want, usages ...pki.Usage) pki.Want {
	return pki.Want{
		Name: name, Kind: pki.Leaf, Signer: signer.Name, CommonName: name, Lifetime: year, Usages: usages,
		CertPath: filepath.Join(dir, name+".crt"), KeyPath: filepath.Join(dir, name+".key"),
		SignerCert: signer.CertPath, SignerKey: signer.KeyPath,
	}
}

func server(dir string, signer pki.Want) pki.Want {
	w := leaf(dir, "apiserver", signer, pki.ServerAuth)
	w.DNSNames = []string{"kubernetes", "localhost"}
	w.Addresses = []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("fd00::1")}
	return w
}

func keyPairWant(dir string) pki.Want {
	return pki.Want{Name: "sa", Kind: pki.KeyPair, CertPath: filepath.Join(dir, "sa.pub"), KeyPath: filepath.Join(dir, "sa.key")}
}

func secretWant(dir string) pki.Want {
	return pki.Want{Name: "encryption", Kind: pki.Secret, KeyPath: filepath.Join(dir, "encryption.key")}
}

// everything returns one Want of each kind, signers first.
func everything(dir string) []pki.Want {
	ca := authority(dir, "ca")
	return []pki.Want{ca, server(dir, ca), keyPairWant(dir), secretWant(dir)}
}

func TestEnsureTwiceChangesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := at(start)
	for _, w := range everything(dir) {
		if ok, exists, detail, err := l.Check(t.Context(), w); ok || exists || detail == "" || err != nil {
			t.Errorf("check %s before Ensure: got ok=%v, exists=%v, detail %q, error %v", w.Name, ok, exists, detail, err)
		}
		ensure(t, l, w)
		if ok, exists, detail, err := l.Check(t.Context(), w); !ok || !exists || detail != "" || err != nil {
			t.Errorf("check %s after Ensure: got ok=%v, exists=%v, detail %q, error %v", w.Name, ok, exists, detail, err)
		}
	}
	before := snapshot(t, dir)
	for _, w := range everything(dir) {
		ensure(t, l, w)
	}
	if diff := cmp.Diff(before, snapshot(t, dir)); diff != "" {
		t.Errorf("the second Ensure changed files: %s", diff)
	}
}

func TestIssuedCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := at(start)
	ca := authority(dir, "ca")
	w := server(dir, ca)
	w.Organizations = []string{"b", "a"}
	ensure(t, l, ca, w)
	cert := mustCert(t, w.CertPath)
	for _, name := range []string{"kubernetes", "localhost", "127.0.0.1", "fd00::1"} {
		if err := cert.VerifyHostname(name); err != nil {
			t.Errorf("verify host name: %v", err)
		}
	}
	if cert.VerifyHostname("elsewhere") == nil {
		t.Error("the certificate is valid for a name that is not in the Want")
	}
	if got, want := cert.NotBefore, start.Add(-5*time.Minute); !got.Equal(want) {
		t.Errorf("NotBefore: got %v, want %v", got, want)
	}
	if got, want := cert.NotAfter, start.Add(year); !got.Equal(want) {
		t.Errorf("NotAfter: got %v, want %v", got, want)
	}
	if cert.IsCA || cert.KeyUsage != x509.KeyUsageDigitalSignature || cert.SerialNumber.BitLen() < 64 {
		t.Errorf("got IsCA %v, key usage %b, serial number of %d bits", cert.IsCA, cert.KeyUsage, cert.SerialNumber.BitLen())
	}
	if diff := cmp.Diff([]string{"a", "b"}, cert.Subject.Organization); diff != "" {
		t.Error(diff)
	}
	w.Lifetime, w.Name = 20*year, "long"
	ensure(t, l, w)
	w.CertPath, w.KeyPath = filepath.Join(dir, "long.crt"), filepath.Join(dir, "long.key")
	ensure(t, l, w)
	if long, root := mustCert(t, w.CertPath), mustCert(t, ca.CertPath); !long.NotAfter.Equal(root.NotAfter) {
		t.Errorf("NotAfter: got %v, want that of its CA, %v", long.NotAfter, root.NotAfter)
	}
}

// A certificate is valid only for its own CA and its own usages.
func TestVerify(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := at(start)
	cluster, etcd := authority(dir, "ca"), authority(dir, "etcd-ca")
	kubelet := leaf(dir, "system:node:a", cluster, pki.ClientAuth)
	etcdServer := leaf(dir, "etcd", etcd, pki.ServerAuth, pki.ClientAuth)
	ensure(t, l, cluster, etcd, kubelet, etcdServer)
	tests := map[string]struct {
		root, leaf pki.Want
		usage      x509.ExtKeyUsage
		wantOK     bool
	}{
		"kubelet as client of the cluster": {cluster, kubelet, x509.ExtKeyUsageClientAuth, true},
		"kubelet as server of the cluster": {cluster, kubelet, x509.ExtKeyUsageServerAuth, false},
		"kubelet as client of etcd":        {etcd, kubelet, x509.ExtKeyUsageClientAuth, false},
		"etcd as server":                   {etcd, etcdServer, x509.ExtKeyUsageServerAuth, true},
		"etcd as peer":                     {etcd, etcdServer, x509.ExtKeyUsageClientAuth, true},
		"etcd as client of the cluster":    {cluster, etcdServer, x509.ExtKeyUsageClientAuth, false},
		"leaf as its own CA":               {kubelet, kubelet, x509.ExtKeyUsageServerAuth, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			roots := x509.NewCertPool()
			roots.AddCert(mustCert(t, tt.root.CertPath))
			_, err := mustCert(t, tt.leaf.CertPath).Verify(x509.VerifyOptions{Roots: roots, CurrentTime: start, KeyUsages: []x509.ExtKeyUsage{tt.usage}})
			if (err == nil) != tt.wantOK {
				t.Errorf("verify: got %v, want ok=%v", err, tt.wantOK)
			}
		})
	}
}

func TestKeyPairIsES256(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := keyPairWant(dir)
	ensure(t, at(start), w)
	data, err := os.ReadFile(w.CertPath)
	if err != nil {
		t.Fatal(err)
	}
	block, rest := pem.Decode(data)
	if block == nil || block.Type != "PUBLIC KEY" || len(rest) != 0 {
		t.Fatalf("public key file: got %q", data)
	}
	pub, err := x509.ParsePKIXPublicKey(block.Bytes)
	if key, ok := pub.(*ecdsa.PublicKey); err != nil || !ok || key.Curve.Params().BitSize != 256 {
		t.Errorf("got public key %T, error %v, want ECDSA P-256", pub, err)
	}
}

func TestEnsureInParallel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := at(start)
	ca := authority(dir, "ca")
	ensure(t, l, ca)
	var g errgroup.Group
	for i := range 20 {
		g.Go(func() error { return l.Ensure(t.Context(), leaf(dir, fmt.Sprintf("leaf-%d", i), ca, pki.ClientAuth)) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	serials := map[string]bool{}
	for i := range 20 {
		serials[mustCert(t, filepath.Join(dir, fmt.Sprintf("leaf-%d.crt", i))).SerialNumber.String()] = true
	}
	if len(serials) != 20 {
		t.Errorf("got %d different serial numbers for 20 certificates", len(serials))
	}
}

func ensure(t *testing.T, l *Local, wants ...pki.Want) {
	t.Helper()
	for _, w := range wants {
		if err := l.Ensure(t.Context(), w); err != nil {
			t.Fatal(err)
		}
	}
}

func mustCert(t *testing.T, path string) *x509.Certificate {
	t.Helper()
	cert, bad, err := readCert(path)
	if cert == nil {
		t.Fatalf("read %s: %s %v", path, bad, err)
	}
	return cert
}

// snapshot returns the mode and content of every file in a directory.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err1 := d.Info()
		data, err2 := os.ReadFile(path)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		files[strings.TrimPrefix(path, dir)] = info.Mode().String() + " " + string(data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestRenewNow(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := at(start)
	ca := authority(dir, "ca")
	w := server(dir, ca)
	if err := l.RenewNow(w); err != nil {
		t.Errorf("RenewNow without a certificate: %v", err)
	}
	ensure(t, l, ca, w)
	before := mustCert(t, w.CertPath)
	for range 2 { // two requests, one renewal
		if err := l.RenewNow(w); err != nil {
			t.Fatal(err)
		}
	}
	if ok, exists, detail, err := l.Check(t.Context(), w); ok || !exists || detail != "renewal was requested" || err != nil {
		t.Errorf("check after RenewNow: got ok=%v, exists=%v, detail %q, error %v", ok, exists, detail, err)
	}
	ensure(t, l, w)
	after := mustCert(t, w.CertPath)
	if bytes.Equal(after.Raw, before.Raw) || sameKey(after.PublicKey, before.PublicKey) {
		t.Error("the certificate or its key was not replaced")
	}
	if ok, _, detail, err := l.Check(t.Context(), w); !ok || err != nil {
		t.Errorf("check after the renewal: got %q, %v", detail, err)
	}
	ensure(t, l, w)
	if again := mustCert(t, w.CertPath); !bytes.Equal(again.Raw, after.Raw) {
		t.Error("the certificate was renewed twice")
	}
	for _, w := range []pki.Want{ca, keyPairWant(dir), secretWant(dir)} {
		if err := l.RenewNow(w); err == nil {
			t.Errorf("RenewNow accepts %s", w.Name)
		}
	}
}

func TestLife(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := at(start)
	ca := authority(dir, "ca")
	w := server(dir, ca)
	if _, notAfter, _, err := l.Life(w); !notAfter.IsZero() || err != nil {
		t.Errorf("missing certificate: got %v, %v", notAfter, err)
	}
	ensure(t, l, ca, w)
	cert := mustCert(t, w.CertPath)
	notBefore, notAfter, renewed, err := l.Life(w)
	if err != nil || !notBefore.Equal(cert.NotBefore) || !notAfter.Equal(cert.NotAfter) {
		t.Errorf("leaf: got %v, %v, %v", notBefore, notAfter, err)
	}
	if early, late := start.Add(year*59/100), start.Add(year*67/100); renewed.Before(early) || renewed.After(late) {
		t.Errorf("renewal time: got %v, want between %v and %v", renewed, early, late)
	}
	if _, notAfter, renewed, err := l.Life(ca); notAfter.IsZero() || !renewed.IsZero() || err != nil {
		t.Errorf("CA: got %v, %v, %v", notAfter, renewed, err)
	}
	if _, notAfter, _, err := l.Life(secretWant(dir)); !notAfter.IsZero() || err != nil {
		t.Errorf("secret: got %v, %v", notAfter, err)
	}
}
