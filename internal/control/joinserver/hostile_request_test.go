// SPDX-License-Identifier: Apache-2.0

package joinserver_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/control/joinserver"
)

func csr(t testing.TB, tmpl x509.CertificateRequest, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &tmpl, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// honest returns the requests that a worker's plan needs.
func honest(t testing.TB) map[string][]byte {
	t.Helper()
	return map[string][]byte{"kubelet": csr(t, x509.CertificateRequest{}, certtest.Key(t)), "kube-proxy": csr(t, x509.CertificateRequest{}, certtest.Key(t))}
}

// asking attacks with requests after a legitimate grant.
func asking(reason joinserver.Reason, change func(t *testing.T, m *machine, r map[string][]byte)) attack {
	return attack{machine: worker, joined: true, reason: reason, do: func(t *testing.T, m *machine) error {
		r := honest(t)
		change(t, m, r)
		return m.talk(t).granted().sendKeys(r).end()
	}}
}

// kubelet attacks with one forged request next to an honest one: neither is signed.
func kubelet(reason joinserver.Reason, forge func(t *testing.T) []byte) attack {
	return asking(reason, func(t *testing.T, _ *machine, r map[string][]byte) { r["kubelet"] = forge(t) })
}

// holding attacks with a request that contains more than a key.
func holding(reason joinserver.Reason, tmpl x509.CertificateRequest) attack {
	return kubelet(reason, func(t *testing.T) []byte { return csr(t, tmpl, certtest.Key(t)) })
}

func extension(id asn1.ObjectIdentifier, value []byte) x509.CertificateRequest {
	return x509.CertificateRequest{ExtraExtensions: []pkix.Extension{{Id: id, Critical: true, Value: value}}}
}

// TestHostileRequests has the content that a request must not have, and the keys that it must not be for.
func TestHostileRequests(t *testing.T) {
	t.Parallel()
	isCA, err := asn1.Marshal(struct{ IsCA bool }{true})
	if err != nil {
		panic(err)
	}
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprintf("host-%d.example.org", i)
	}
	subject := func(n pkix.Name) attack { return holding(joinserver.BadSubject, x509.CertificateRequest{Subject: n}) }
	ext := func(r x509.CertificateRequest) attack { return holding(joinserver.BadExtension, r) }
	runAttacks(t, 31, map[string]attack{
		"CN of its own":            subject(pkix.Name{CommonName: "system:node:dev-worker-0"}),
		"CN of another node":       subject(pkix.Name{CommonName: "system:node:dev-main-0"}),
		"CN of an administrator":   subject(pkix.Name{CommonName: "kubernetes-admin"}),
		"O system:masters":         subject(pkix.Name{Organization: []string{"system:masters"}}),
		"O more than wanted":       subject(pkix.Name{CommonName: "system:node:dev-worker-0", Organization: []string{"system:nodes", "slipway:control"}}),
		"OU and serial number":     subject(pkix.Name{OrganizationalUnit: []string{"x"}, SerialNumber: "1"}),
		"newline in CN":            subject(pkix.Name{CommonName: "a\nreason=granted"}),
		"SAN kubernetes":           ext(x509.CertificateRequest{DNSNames: []string{"kubernetes.default.svc"}}),
		"SAN wildcard":             ext(x509.CertificateRequest{DNSNames: []string{"*"}}),
		"SAN address":              ext(x509.CertificateRequest{IPAddresses: []net.IP{net.IPv4(10, 96, 0, 1)}}),
		"SAN e-mail":               ext(x509.CertificateRequest{EmailAddresses: []string{"a@example.org"}}),
		"SAN URI":                  ext(x509.CertificateRequest{URIs: []*url.URL{{Scheme: "spiffe", Host: "x"}}}),
		"CA:true":                  ext(extension(asn1.ObjectIdentifier{2, 5, 29, 19}, isCA)),
		"key usage certSign":       ext(extension(asn1.ObjectIdentifier{2, 5, 29, 15}, []byte{3, 2, 2, 4})),
		"unknown extension":        ext(extension(asn1.ObjectIdentifier{1, 2, 3, 4}, []byte{5, 0})),
		"1000 SANs":                holding(joinserver.BadRequest, x509.CertificateRequest{DNSNames: names}),
		"certificate of no plan":   asking(joinserver.BadWant, func(t *testing.T, _ *machine, r map[string][]byte) { rename(r, "kubelet", "apiserver") }),
		"name of 64 KiB":           asking(joinserver.BadWant, func(t *testing.T, _ *machine, r map[string][]byte) { rename(r, "kubelet", strings.Repeat("a", 64<<10)) }),
		"newline in a name":        asking(joinserver.BadWant, func(t *testing.T, _ *machine, r map[string][]byte) { rename(r, "kubelet", "a\nreason=granted") }),
		"no name":                  asking(joinserver.BadWant, func(t *testing.T, _ *machine, r map[string][]byte) { rename(r, "kubelet", "") }),
		"more than the plan wants": asking(joinserver.BadWant, func(t *testing.T, _ *machine, r map[string][]byte) { r["third"] = r["kubelet"] }),
		"one key for two purposes": asking(joinserver.KeyTaken, func(_ *testing.T, _ *machine, r map[string][]byte) { r["kubelet"] = r["kube-proxy"] }),
		"the machine's own key": asking(joinserver.KeyTaken, func(t *testing.T, m *machine, r map[string][]byte) {
			r["kubelet"] = csr(t, x509.CertificateRequest{}, m.key)
		}),
		"key of the serving machine": asking(joinserver.KeyTaken, func(t *testing.T, m *machine, r map[string][]byte) {
			r["kubelet"] = csr(t, x509.CertificateRequest{}, m.w.own)
		}),
		"key of its other certificate": asking(joinserver.KeyTaken, func(t *testing.T, m *machine, r map[string][]byte) {
			r["kubelet"] = csr(t, x509.CertificateRequest{}, m.keys["kube-proxy"])
		}),
		"what a control plane signs itself": {machine: controlPlane, joined: true, reason: joinserver.BadWant, do: func(t *testing.T, m *machine) error {
			r := honest(t)
			rename(r, "kubelet", "etcd-peer")
			return m.talk(t).granted().sendKeys(r).end()
		}},
		"the machine's own key, and an old list": asking(joinserver.KeyTaken, func(t *testing.T, m *machine, r map[string][]byte) {
			m.w.forget(t)
			r["kubelet"] = csr(t, x509.CertificateRequest{}, m.key)
		}),
		"key of the serving machine, and an old list": asking(joinserver.KeyTaken, func(t *testing.T, m *machine, r map[string][]byte) {
			m.w.forget(t)
			r["kubelet"] = csr(t, x509.CertificateRequest{}, m.w.own)
		}),
		"machine key of another node":      otherKey(func(other *machine) crypto.Signer { return other.key }),
		"certified key of another node":    otherKey(func(other *machine) crypto.Signer { return other.keys["kubelet"] }),
		"seal key that makes shared zeros": {machine: controlPlane, joined: true, reason: joinserver.Malformed, do: weakSealKey},
	})
}

func rename(r map[string][]byte, from, to string) {
	r[to] = r[from]
	delete(r, from)
}

// otherKey attacks with a request for a key that was stolen from another node.
func otherKey(choose func(other *machine) crypto.Signer) attack {
	var other *machine
	a := asking(joinserver.KeyTaken, func(t *testing.T, _ *machine, r map[string][]byte) {
		r["kubelet"] = csr(t, x509.CertificateRequest{}, choose(other))
	})
	a.machine = func(w *world) *machine {
		other = controlPlane(w)
		other.join(w.tb)
		return worker(w)
	}
	return a
}

// weakSealKey attacks with a point of low order, with which anyone could open what is sealed.
func weakSealKey(t *testing.T, m *machine) error {
	k := m.talk(t)
	k.hello.SealKey = make([]byte, 32)
	return k.proven().end()
}

// TestHostileForms has requests that no library makes.
func TestHostileForms(t *testing.T) {
	t.Parallel()
	good := func(t *testing.T) []byte { return csr(t, x509.CertificateRequest{}, certtest.Key(t)) }
	signed := func(a x509.SignatureAlgorithm) attack {
		return holding(joinserver.BadProof, x509.CertificateRequest{SignatureAlgorithm: a})
	}
	runAttacks(t, 14, map[string]attack{
		"RSA-1024": kubelet(joinserver.BadKey, func(t *testing.T) []byte {
			n := new(big.Int).Lsh(big.NewInt(1), 1023) // crypto/rsa refuses to make such keys
			return forge(t, &rsa.PublicKey{N: n.SetBit(n, 0, 1), E: 65537}, nil)
		}),
		"RSA-16384": kubelet(joinserver.BadRequest, func(t *testing.T) []byte {
			n := new(big.Int).Lsh(big.NewInt(1), 16383)
			return forge(t, &rsa.PublicKey{N: n.SetBit(n, 0, 1), E: 65537}, nil)
		}),
		"P-384": kubelet(joinserver.BadKey, func(t *testing.T) []byte {
			key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			return csr(t, x509.CertificateRequest{}, key)
		}),
		"Ed25519": kubelet(joinserver.BadKey, func(t *testing.T) []byte {
			_, key, err := ed25519.GenerateKey(rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			return csr(t, x509.CertificateRequest{}, key)
		}),
		"bad self-signature": kubelet(joinserver.BadProof, func(t *testing.T) []byte {
			der := good(t)
			der[len(der)-1] ^= 1
			return der
		}),
		"key of another owner": kubelet(joinserver.BadProof, func(t *testing.T) []byte {
			return forge(t, certtest.Key(t).Public(), nil) // signed by another key
		}),
		"signature with SHA-384": signed(x509.ECDSAWithSHA384),
		"challenge password": kubelet(joinserver.BadExtension, func(t *testing.T) []byte {
			return forge(t, certtest.Key(t).Public(), []byte("\x30\x0f\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x09\x07\x31\x02\x0c\x00"))
		}),
		"bytes behind the request": kubelet(joinserver.BadRequest, func(t *testing.T) []byte { return append(good(t), 0) }),
		"half a request":           kubelet(joinserver.BadRequest, func(t *testing.T) []byte { der := good(t); return der[:len(der)/2] }),
		"no request":               kubelet(joinserver.BadRequest, func(*testing.T) []byte { return nil }),
		"garbage":                  kubelet(joinserver.BadRequest, func(*testing.T) []byte { return []byte(strings.Repeat("\x1b[31m\n", 50)) }),
		"certificate as request":   kubelet(joinserver.BadRequest, func(t *testing.T) []byte { return certtest.NewAuthority(t, "x").Cert.Raw }),
		"request of 512 KiB":       kubelet(joinserver.BadRequest, func(*testing.T) []byte { return make([]byte, 512<<10) }),
	})
}

// forge makes a request byte by byte, with attributes, signed by another key.
func forge(t *testing.T, public crypto.PublicKey, attributes []byte) []byte {
	t.Helper()
	spki, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	type algorithm struct{ ID asn1.ObjectIdentifier }
	marshal := func(v any) []byte {
		der, err := asn1.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	tbs := marshal(struct {
		Version    int
		Subject    asn1.RawValue
		Key        asn1.RawValue
		Attributes asn1.RawValue
	}{0, asn1.RawValue{FullBytes: []byte("\x30\x00")}, asn1.RawValue{FullBytes: spki}, asn1.RawValue{Class: 2, IsCompound: true, Bytes: attributes}})
	sig, err := certtest.Key(t).Sign(rand.Reader, make([]byte, 32), crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	return marshal(struct {
		TBS       asn1.RawValue
		Algorithm algorithm
		Signature asn1.BitString
	}{asn1.RawValue{FullBytes: tbs}, algorithm{asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2}}, asn1.BitString{Bytes: sig, BitLength: 8 * len(sig)}})
}
