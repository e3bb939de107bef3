// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/core/pin"
)

func recorded() map[string]Machine {
	return map[string]Machine{
		"a": {Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}},
		"b": {Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.2")}},
		"d": {Key: "without addresses"},
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
		other   map[string]string // the other owner of the node's key
		want    verdict
		wantWhy string
	}{
		"request of a kubelet": {csr: none, want: approve, wantWhy: "match the node's record"},
		"no key encipherment":  {csr: none, req: func(r *request) { r.usages = []string{"server auth", "digital signature"} }, want: approve},
		"only a name":          {csr: func(c *x509.CertificateRequest) { c.IPAddresses = nil }, want: approve},
		"only an address":      {csr: func(c *x509.CertificateRequest) { c.DNSNames = nil }, want: approve},
		"extra groups":         {csr: none, req: func(r *request) { r.groups = append(r.groups, "system:authenticated") }, want: approve},
		"a year":               {csr: none, req: func(r *request) { r.expires = 365 * 24 * time.Hour }, want: approve},
		"RSA":                  {csr: none, key: rsaKey(t, 2048), want: approve},

		"other node's address":  {csr: func(c *x509.CertificateRequest) { c.IPAddresses[0] = net.ParseIP("10.0.0.2") }, want: deny, wantWhy: "10.0.0.2 is not recorded for node a"},
		"extra address":         {csr: func(c *x509.CertificateRequest) { c.IPAddresses = append(c.IPAddresses, net.ParseIP("8.8.8.8")) }, want: deny, wantWhy: "8.8.8.8 is not recorded"},
		"loopback":              {csr: func(c *x509.CertificateRequest) { c.IPAddresses = []net.IP{net.ParseIP("127.0.0.1")} }, want: deny, wantWhy: "127.0.0.1 is a loopback address"},
		"another node's name":   {csr: func(c *x509.CertificateRequest) { c.Subject.CommonName = "system:node:b" }, want: deny, wantWhy: `its common name is "system:node:b"`},
		"another DNS name":      {csr: func(c *x509.CertificateRequest) { c.DNSNames = []string{"b"} }, want: deny, wantWhy: `DNS name "b" is not the node's name "a"`},
		"extra DNS name":        {csr: func(c *x509.CertificateRequest) { c.DNSNames = append(c.DNSNames, "kubernetes.default.svc") }, want: deny, wantWhy: "kubernetes.default.svc"},
		"wildcard":              {csr: func(c *x509.CertificateRequest) { c.DNSNames = []string{"*"} }, want: deny, wantWhy: `"*" is not`},
		"nothing to serve":      {csr: func(c *x509.CertificateRequest) { c.DNSNames, c.IPAddresses = nil, nil }, want: deny, wantWhy: "neither DNS names nor IP addresses"},
		"masters":               {csr: func(c *x509.CertificateRequest) { c.Subject.Organization = []string{"system:masters"} }, want: deny, wantWhy: `"system:masters"`},
		"extra organization":    {csr: func(c *x509.CertificateRequest) { c.Subject.Organization = []string{"system:masters", "system:nodes"} }, want: deny, wantWhy: "want only system:nodes"},
		"no organization":       {csr: func(c *x509.CertificateRequest) { c.Subject.Organization = nil }, want: deny, wantWhy: "want only system:nodes"},
		"unit in the subject":   {csr: func(c *x509.CertificateRequest) { c.Subject.OrganizationalUnit = []string{"x"} }, want: deny, wantWhy: "more than a common name and an organization"},
		"URI":                   {csr: func(c *x509.CertificateRequest) { c.URIs = []*url.URL{{Scheme: "spiffe", Host: "x"}} }, want: deny, wantWhy: "URIs or email"},
		"e-mail":                {csr: func(c *x509.CertificateRequest) { c.EmailAddresses = []string{"root@example.test"} }, want: deny, wantWhy: "URIs or email"},
		"client auth too":       {csr: none, req: func(r *request) { r.usages = append(r.usages, "client auth") }, want: deny, wantWhy: "a kubelet may only request"},
		"client auth instead":   {csr: none, req: func(r *request) { r.usages = []string{"digital signature", "client auth"} }, want: deny, wantWhy: "a kubelet may only request"},
		"cert sign":             {csr: none, req: func(r *request) { r.usages = append(r.usages, "cert sign") }, want: deny, wantWhy: "cert sign"},
		"no usages":             {csr: none, req: func(r *request) { r.usages = nil }, want: deny, wantWhy: "a kubelet may only request"},
		"ten years":             {csr: none, req: func(r *request) { r.expires = 87600 * time.Hour }, want: deny, wantWhy: "87600h0m0s, longer than"},
		"requester in no group": {csr: none, req: func(r *request) { r.groups = []string{"system:authenticated"} }, want: deny, wantWhy: "not in the group system:nodes"},
		"requester a user":      {csr: none, req: func(r *request) { r.user = "kubernetes-admin" }, want: deny, wantWhy: `"kubernetes-admin" is not a node`},
		"requester nameless":    {csr: none, req: func(r *request) { r.user = "system:node:" }, want: deny, wantWhy: "is not a node"},
		"requester other node":  {csr: none, req: func(r *request) { r.user = "system:node:b" }, want: deny, wantWhy: `the requester is "system:node:b"`},
		"short RSA":             {csr: none, key: rsaKey(t, 1024), want: deny, wantWhy: "1024 bits"},
		"Ed25519 key":           {csr: none, key: edKey(t), want: deny, wantWhy: "unsupported type"},
		"no PEM":                {csr: none, req: func(r *request) { r.pem = []byte("hello") }, want: deny, wantWhy: "not exactly one PEM"},
		"two PEM blocks":        {csr: none, req: func(r *request) { r.pem = append(r.pem, r.pem...) }, want: deny, wantWhy: "not exactly one PEM"},
		"a certificate": {csr: none, req: func(r *request) {
			r.pem = []byte(strings.ReplaceAll(string(r.pem), "CERTIFICATE REQUEST", "CERTIFICATE"))
		}, want: deny, wantWhy: "not exactly one PEM"},
		"forged signature": {csr: none, req: breakSignature, want: deny, wantWhy: "not signed by its own key"},

		"another node's key": {csr: none, other: map[string]string{"a": "b"}, want: deny, wantWhy: "already belongs to node b"},
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
			got, why := judge(r, recorded(), func(node string, _ pin.Pin) string { return tt.other[node] })
			if got != tt.want || !strings.Contains(why, tt.wantWhy) {
				t.Errorf("got verdict %d %q, want %d %q", got, why, tt.want, tt.wantWhy)
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
		t.Fatal("crypto/rsa cannot generate a key this short")
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

// The approver only needs the rights of slipway:control, and it continues after a restart of the API server.
func TestApproveServing(t *testing.T) {
	t.Parallel()
	s := ownServer(t)
	super := s.client(t, "super-admin")
	if _, err := super.Apply(t.Context(), clusterAddOns(t), nil); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var knowsB atomic.Bool
	changed, ended := make(chan struct{}, 1), make(chan error, 1)
	known := func() map[string]Machine {
		all := recorded()
		if !knowsB.Load() {
			delete(all, "b")
		}
		return all
	}
	go func() { ended <- s.client(t, "control").ApproveServing(ctx, known, changed) }()
	defer func() {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("ApproveServing returned %v", err)
		}
	}()

	a, b := s.client(t, "node-a"), s.client(t, "node-b")
	if got := verdictOn(t, a, "good", nodeCSR()); got != "Approved SlipwayApproved: name and addresses match the node's record" {
		t.Errorf("good request: got %s", got)
	}
	otherAddress := nodeCSR()
	otherAddress.IPAddresses = append(otherAddress.IPAddresses, net.ParseIP("10.0.0.2"))
	if got := verdictOn(t, a, "other-address", otherAddress); got != "Denied SlipwayDenied: the address 10.0.0.2 is not recorded for node a" {
		t.Errorf("address of another node: got %s", got)
	}
	waitEvent(t, super, "ServingCertificateDenied", "other-address")
	names := nodeCSR()
	names.DNSNames = append(names.DNSNames, "kubernetes")
	if got := verdictOn(t, a, "names", names); !strings.HasPrefix(got, "Denied ") {
		t.Errorf("extra DNS name: got %s", got)
	}

	// The request of node b, which has no record, stays pending. It is judged again when the record exists.
	ofB := nodeCSR()
	ofB.Subject.CommonName, ofB.DNSNames, ofB.IPAddresses = "system:node:b", []string{"b"}, []net.IP{net.ParseIP("10.0.0.2")}
	ask(t, b, "of-b", ofB, certtest.Key(t))
	if got := verdictOn(t, a, "after", nodeCSR()); !strings.HasPrefix(got, "Approved ") {
		t.Errorf("request after the pending one: got %s", got)
	}
	if got := conditionsOf(t, super, "of-b"); got != "" {
		t.Errorf("request of an unknown node: got %s, want no decision", got)
	}
	knowsB.Store(true)
	changed <- struct{}{}
	if got := decided(t, b, "of-b"); !strings.HasPrefix(got, "Approved ") {
		t.Errorf("request of b after it was recorded: got %s", got)
	}

	// A key that was approved for node a is denied for b and approved again for a.
	key := certtest.Key(t)
	for _, tt := range []struct {
		name, want string
		who        *Client
		csr        *x509.CertificateRequest
	}{
		{"with-key", "Approved ", a, nodeCSR()},
		{"with-its-key", "Denied SlipwayDenied: its key already belongs to node a", b, ofB},
		{"with-key-again", "Approved ", a, nodeCSR()},
	} {
		ask(t, tt.who, tt.name, tt.csr, key)
		if got := decided(t, tt.who, tt.name); !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
	waitEvent(t, super, "ServingCertificateDenied", "with-its-key")

	kill(s.api)
	if err := s.startAPI(); err != nil {
		t.Fatal(err)
	}
	waitReadyz(t, super)
	ask(t, b, "with-its-key-later", ofB, key)
	if got := decided(t, b, "with-its-key-later"); !strings.HasPrefix(got, "Denied ") {
		t.Errorf("key of a in a request of b after the API server's restart: got %s", got)
	}
	if got := verdictOn(t, a, "restarted", nodeCSR()); !strings.HasPrefix(got, "Approved ") {
		t.Errorf("good request after the API server's restart: got %s", got)
	}
}

func ask(t *testing.T, c *Client, name string, csr *x509.CertificateRequest, key crypto.Signer) {
	t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"signerName": servingSigner, "usages": []any{"digital signature", "server auth"},
			"request": base64.StdEncoding.EncodeToString(newRequest(t, csr, key)),
		},
	}}
	if _, err := c.dyn.Resource(requests).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func verdictOn(t *testing.T, c *Client, name string, csr *x509.CertificateRequest) string {
	t.Helper()
	ask(t, c, name, csr, certtest.Key(t))
	return decided(t, c, name)
}

// decided watches a request until it is decided, as the kubelet does.
func decided(t *testing.T, c *Client, name string) (text string) {
	t.Helper()
	err := c.follow(t.Context(), named(requests, "", name), func(string) {}, func(o *unstructured.Unstructured, gone bool) (bool, error) {
		if !gone {
			text = verdictText(o)
		}
		return text != "", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func conditionsOf(t *testing.T, c *Client, name string) string {
	t.Helper()
	o, err := c.dyn.Resource(requests).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return verdictText(o)
}

func verdictText(o *unstructured.Unstructured) string {
	var all []string
	for _, c := range maps(o.Object, "status", "conditions") {
		all = append(all, str(c, "type")+" "+joinReason(str(c, "reason"), str(c, "message")))
	}
	return strings.Join(all, "; ")
}

func waitEvent(t *testing.T, c *Client, why, about string) {
	t.Helper()
	err := c.follow(t.Context(), query{resource: events, namespace: "default"}, func(string) {}, func(o *unstructured.Unstructured, gone bool) (bool, error) {
		return !gone && str(o.Object, "reason") == why && str(o.Object, "involvedObject", "name") == about, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
