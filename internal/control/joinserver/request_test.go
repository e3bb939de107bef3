// SPDX-License-Identifier: Apache-2.0

package joinserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"
)

// FuzzRequest holds whatever is taken as a request to what a request may be: a P-256 key and its signature, in exactly one form.
func FuzzRequest(f *testing.F) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	for _, tmpl := range []x509.CertificateRequest{{}, {DNSNames: []string{"a"}}, {Subject: pkix.Name{CommonName: "a"}}} {
		der, err := x509.CreateCertificateRequest(rand.Reader, &tmpl, key)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(der)
	}
	f.Fuzz(func(t *testing.T, der []byte) {
		got, err := checkRequest(der)
		if err != nil {
			return
		}
		r, err := x509.ParseCertificateRequest(der)
		if err != nil || r.CheckSignature() != nil || got.Curve != elliptic.P256() {
			t.Fatalf("taken: %v", err)
		}
		if len(r.Subject.Names)+len(r.Extensions)+len(r.DNSNames)+len(r.IPAddresses) > 0 || len(r.RawTBSCertificateRequest) != 100 {
			t.Errorf("a request with more than a key is taken: %x", der)
		}
	})
}

// The audit must survive whatever a stranger sends.
func FuzzPrintable(f *testing.F) {
	f.Add("a\nb\x1b[2J\u202e\xff\"'", 10)
	f.Fuzz(func(t *testing.T, text string, most int) {
		if most < 0 || most > 1<<10 {
			return
		}
		got := printable(text, most)
		for _, r := range got {
			if (r < ' ' || r > '~') && r != '…' {
				t.Fatalf("%q becomes %q", text, got)
			}
		}
		if len(got) > 10*most+len("…") {
			t.Errorf("%d bytes become %d", len(text), len(got))
		}
	})
}
