// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"
)

func recorded() map[string]Machine {
	return map[string]Machine{
		"a": {Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}},
		"b": {Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.2")}},
		"d": {Key: "nobody has said where it is"},
	}
}

func nodeCSR() *x509.CertificateRequest {
	return &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}},
		DNSNames: []string{"a"}, IPAddresses: []net.IP{net.ParseIP("10.0.0.1"), net.ParseIP("fd00::1")},
	}
}

func newRequest(t *testing.T, csr *x509.CertificateRequest, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, csr, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func TestJudge(t *testing.T) {
	t.Parallel()
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	none := func(*x509.CertificateRequest) {}
	tests := map[string]struct {
		csr     func(*x509.CertificateRequest)
		req     func(*request)
		key     crypto.Signer     // ecKey when nil
		other   map[string]string // whose the key is beside a node's
		want    verdict
		wantWhy string
	}{
		"as a kubelet asks":      {csr: none, want: approve, wantWhy: "recorded"},
		"without key encryption": {csr: none, req: func(r *request) { r.usages = []string{"server auth", "digital signature"} }, want: approve},
		"only a name":            {csr: func(c *x509.CertificateRequest) { c.IPAddresses = nil }, want: approve},
		"only an address":        {csr: func(c *x509.CertificateRequest) { c.DNSNames = nil }, want: approve},
		"more groups":            {csr: none, req: func(r *request) { r.groups = append(r.groups, "system:authenticated") }, want: approve},
		"a year":                 {csr: none, req: func(r *request) { r.expires = 365 * 24 * time.Hour }, want: approve},
		"RSA":                    {csr: none, key: rsaKey(t, 2048), want: approve},

		"foreign address":       {csr: func(c *x509.CertificateRequest) { c.IPAddresses[0] = net.ParseIP("10.0.0.2") }, want: deny, wantWhy: "10.0.0.2 is not recorded for node a"},
		"one address more":      {csr: func(c *x509.CertificateRequest) { c.IPAddresses = append(c.IPAddresses, net.ParseIP("8.8.8.8")) }, want: deny, wantWhy: "8.8.8.8 is not recorded"},
		"loopback":              {csr: func(c *x509.CertificateRequest) { c.IPAddresses = []net.IP{net.ParseIP("127.0.0.1")} }, want: deny, wantWhy: "127.0.0.1 is every machine's"},
		"another node's name":   {csr: func(c *x509.CertificateRequest) { c.Subject.CommonName = "system:node:b" }, want: deny, wantWhy: `its name is "system:node:b"`},
		"another DNS name":      {csr: func(c *x509.CertificateRequest) { c.DNSNames = []string{"b"} }, want: deny, wantWhy: `DNS name "b" is not the node's name "a"`},
		"one DNS name more":     {csr: func(c *x509.CertificateRequest) { c.DNSNames = append(c.DNSNames, "kubernetes.default.svc") }, want: deny, wantWhy: "kubernetes.default.svc"},
		"wildcard":              {csr: func(c *x509.CertificateRequest) { c.DNSNames = []string{"*"} }, want: deny, wantWhy: `"*" is not`},
		"nothing to serve":      {csr: func(c *x509.CertificateRequest) { c.DNSNames, c.IPAddresses = nil, nil }, want: deny, wantWhy: "no name and no address"},
		"masters":               {csr: func(c *x509.CertificateRequest) { c.Subject.Organization = []string{"system:masters"} }, want: deny, wantWhy: `"system:masters"`},
		"one group more":        {csr: func(c *x509.CertificateRequest) { c.Subject.Organization = []string{"system:masters", "system:nodes"} }, want: deny, wantWhy: "not system:nodes alone"},
		"no group in subject":   {csr: func(c *x509.CertificateRequest) { c.Subject.Organization = nil }, want: deny, wantWhy: "not system:nodes alone"},
		"unit in the subject":   {csr: func(c *x509.CertificateRequest) { c.Subject.OrganizationalUnit = []string{"x"} }, want: deny, wantWhy: "more than a name and an organization"},
		"URI":                   {csr: func(c *x509.CertificateRequest) { c.URIs = []*url.URL{{Scheme: "spiffe", Host: "x"}} }, want: deny, wantWhy: "URIs or e-mail"},
		"e-mail":                {csr: func(c *x509.CertificateRequest) { c.EmailAddresses = []string{"root@example.test"} }, want: deny, wantWhy: "URIs or e-mail"},
		"client auth too":       {csr: none, req: func(r *request) { r.usages = append(r.usages, "client auth") }, want: deny, wantWhy: "a kubelet serves, and nothing else"},
		"client auth instead":   {csr: none, req: func(r *request) { r.usages = []string{"digital signature", "client auth"} }, want: deny, wantWhy: "a kubelet serves"},
		"cert sign":             {csr: none, req: func(r *request) { r.usages = append(r.usages, "cert sign") }, want: deny, wantWhy: "cert sign"},
		"no usages":             {csr: none, req: func(r *request) { r.usages = nil }, want: deny, wantWhy: "a kubelet serves"},
		"ten years":             {csr: none, req: func(r *request) { r.expires = 87600 * time.Hour }, want: deny, wantWhy: "87600h0m0s, longer than"},
		"requester in no group": {csr: none, req: func(r *request) { r.groups = []string{"system:authenticated"} }, want: deny, wantWhy: "not in the group system:nodes"},
		"requester a user":      {csr: none, req: func(r *request) { r.user = "kubernetes-admin" }, want: deny, wantWhy: `"kubernetes-admin" is no node`},
		"requester nameless":    {csr: none, req: func(r *request) { r.user = "system:node:" }, want: deny, wantWhy: "is no node"},
		"requester other node":  {csr: none, req: func(r *request) { r.user = "system:node:b" }, want: deny, wantWhy: `the requester is "system:node:b"`},
		"short RSA":             {csr: none, key: rsaKey(t, 1024), want: deny, wantWhy: "1024 bits"},
		"strange key":           {csr: none, key: edKey(t), want: deny, wantWhy: "unknown kind"},
		"no PEM":                {csr: none, req: func(r *request) { r.pem = []byte("hello") }, want: deny, wantWhy: "not one PEM"},
		"two blocks":            {csr: none, req: func(r *request) { r.pem = append(r.pem, r.pem...) }, want: deny, wantWhy: "not one PEM"},
		"a certificate": {csr: none, req: func(r *request) {
			r.pem = []byte(strings.ReplaceAll(string(r.pem), "CERTIFICATE REQUEST", "CERTIFICATE"))
		}, want: deny, wantWhy: "not one PEM"},
		"forged signature": {csr: none, req: breakSignature, want: deny, wantWhy: "not signed by its own key"},

		"another node's key": {csr: none, other: map[string]string{"a": "b"}, want: deny, wantWhy: "already the key of node b"},
		"no address recorded": {
			csr: func(c *x509.CertificateRequest) { c.Subject.CommonName, c.DNSNames = "system:node:d", nil },
			req: func(r *request) { r.user = "system:node:d" }, want: undecided, wantWhy: "no addresses are recorded for node d",
		},
		"node not recorded": {
			csr: func(c *x509.CertificateRequest) { c.Subject.CommonName, c.DNSNames = "system:node:c", nil },
			req: func(r *request) { r.user = "system:node:c" }, want: undecided, wantWhy: "no addresses are recorded for node c",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			csr, key := nodeCSR(), tt.key
			tt.csr(csr)
			if key == nil {
				key = ecKey
			}
			r := request{
				user: "system:node:a", groups: []string{"system:nodes"}, usages: []string{"digital signature", "key encipherment", "server auth"},
				pem: newRequest(t, csr, key),
			}
			if tt.req != nil {
				tt.req(&r)
			}
			got, why := judge(r, recorded(), func(node, _ string) string { return tt.other[node] })
			if got != tt.want || !strings.Contains(why, tt.wantWhy) {
				t.Errorf("verdict %d %q; want %d %q", got, why, tt.want, tt.wantWhy)
			}
		})
	}
}

func breakSignature(r *request) {
	block, _ := pem.Decode(r.pem)
	block.Bytes[len(block.Bytes)-1] ^= 1
	r.pem = pem.EncodeToMemory(block)
}

func rsaKey(t *testing.T, bits int) crypto.Signer {
	t.Helper()
	if bits < 1024 {
		t.Fatal("too short to be made at all")
	}
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func edKey(t *testing.T) crypto.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}
