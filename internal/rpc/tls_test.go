// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
)

// liar signs with one key and says that it is another.
type liar struct {
	crypto.Signer
	says crypto.PublicKey
}

func (l liar) Public() crypto.PublicKey { return l.says }

// certify makes a certificate for any public key; signer signs it and the handshake.
func certify(t testing.TB, public crypto.PublicKey, signer *ecdsa.PrivateKey, names ...string) *tls.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, liar{signer, signer.Public()})
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: signer}
}

// unusual encodes the P-256 key of a certificate in another way: its bits begin three bits earlier, and three unused ones follow.
// The same key would have two pins.
func unusual(t testing.TB, der []byte) []byte {
	t.Helper()
	at := bytes.Index(der, []byte{0x03, 66, 0, 4}) // BIT STRING of 66 bytes, no unused bits, uncompressed point
	if at < 0 {
		t.Fatal("the certificate holds no P-256 key")
	}
	out := bytes.Clone(der)
	point := out[at+3 : at+3+65]
	new(big.Int).Lsh(new(big.Int).SetBytes(point), 3).FillBytes(point)
	out[at+2] = 3
	return out
}

func hugeRSA(bits int) *rsa.PublicKey {
	n := new(big.Int).Lsh(big.NewInt(1), uint(bits-1))
	return &rsa.PublicKey{N: n.SetBit(n, 0, 1), E: 65537}
}

// shows makes a client show that certificate, whatever the server asks for.
func shows(cert *tls.Certificate) func(*tls.Config) {
	return func(c *tls.Config) {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	}
}

func TestHandshakesRefused(t *testing.T) {
	t.Parallel()
	key, own := identity(t)
	_, other := identity(t)
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	chain := func(n int) *tls.Certificate {
		c := &tls.Certificate{PrivateKey: key}
		for range n {
			c.Certificate = append(c.Certificate, own.Certificate[0])
		}
		return c
	}
	names := make([]string, 300)
	for i := range names {
		names[i] = strings.Repeat("n", 20)
	}
	only := func(version uint16) func(*tls.Config) {
		return func(c *tls.Config) { c.MinVersion, c.MaxVersion = version, version }
	}
	cases := map[string]struct {
		change func(*tls.Config)
		want   []string
	}{
		"TLS 1.0":                {only(tls.VersionTLS10), []string{"unsupported versions", "301"}},
		"TLS 1.1":                {only(tls.VersionTLS11), []string{"unsupported versions", "302"}},
		"TLS 1.2":                {only(tls.VersionTLS12), []string{"unsupported versions", "303"}},
		"no ALPN":                {func(c *tls.Config) { c.NextProtos = nil }, []string{"does not offer", "ALPN"}},
		"ALPN of HTTP/1.1":       {func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} }, []string{"does not offer", "ALPN"}},
		"other ALPN":             {func(c *tls.Config) { c.NextProtos = []string{"h3"} }, []string{"unsupported application protocols"}},
		"curve P-521 only":       {func(c *tls.Config) { c.CurvePreferences = []tls.CurveID{tls.CurveP521} }, []string{"no key exchanges supported"}},
		"no certificate":         {shows(&tls.Certificate{}), []string{"didn't provide a certificate"}},
		"two certificates":       {shows(chain(2)), []string{"shows 2 certificates"}},
		"chain of 40 KiB":        {shows(chain(100)), []string{"more than 16384 bytes"}},
		"chain of 400 KiB":       {shows(chain(1000)), []string{"more than 16384 bytes"}},
		"RSA-2048":               {shows(certify(t, hugeRSA(2048), key)), []string{"key is RSA"}},
		"RSA-16384":              {shows(certify(t, hugeRSA(16384), key)), []string{"RSA key larger than"}},
		"P-224":                  {shows(certify(t, p224.Public(), key)), []string{"curve P-224"}},
		"P-384":                  {shows(certify(t, p384.Public(), key)), []string{"curve P-384"}},
		"large certificate":      {shows(certify(t, key.Public(), key, names...)), []string{"more than 4096"}},
		"key encoded otherwise":  {shows(&tls.Certificate{Certificate: [][]byte{unusual(t, own.Certificate[0])}, PrivateKey: key}), []string{"encoded in an unusual way"}},
		"another's certificate":  {shows(&tls.Certificate{Certificate: other.Certificate, PrivateKey: key}), []string{"invalid signature by the client certificate"}},
		"no certificate at all":  {shows(&tls.Certificate{Certificate: [][]byte{[]byte("garbage")}, PrivateKey: key}), []string{"parse client certificate"}},
		"server name, 300 bytes": {func(c *tls.Config) { c.ServerName = strings.Repeat("a", 300) }, []string{"300 bytes"}},
		"server name, 60 KiB":    {func(c *tls.Config) { c.ServerName = strings.Repeat("\x01ä", 20000) }, []string{"more than 16384 bytes"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, ServerOptions{}, AnyKey, joiner{}, initer{})
			config := hostile(t)
			c.change(config)
			conn, err := dialTLS(t, s.addr, config)
			if err == nil {
				_, _ = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
				closed(t, conn)
			}
			r := s.wait(t, append([]string{"TLS handshake"}, c.want...)...)
			if r.Peer.Key != "" || !r.Peer.Addr.IsValid() || r.Method != "" || r.Code != codes.Unauthenticated {
				t.Errorf("audit: %+v", r)
			}
			s.empty(t)
		})
	}
}

// A server without client certificates does not even ask for one.
func TestNoClients(t *testing.T) {
	t.Parallel()
	s := open(t, ServerOptions{}, NoClients, joiner{}, initer{})
	r, err := initv1.NewInitClient(s.dial(t)).Facts(t.Context(), &initv1.FactsRequest{})
	if err != nil || r.GetSlipway() != "" {
		t.Errorf("facts: %v, %v", r, err)
	}
}

func TestZeroClientAuthLetsNobodyIn(t *testing.T) {
	t.Parallel()
	s := open(t, ServerOptions{}, 0, joiner{}, initer{})
	if _, err := initv1.NewInitClient(s.dial(t)).Facts(t.Context(), &initv1.FactsRequest{}); err == nil {
		t.Error("a server that forgot its clients let one in")
	}
	s.wait(t, "lets no client in")
}

func TestEd25519(t *testing.T) {
	t.Parallel()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := SelfSigned(key, "machine", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, ServerOptions{}, AnyKey, joiner{}, initer{})
	conn := dialWith(t, s.addr, ClientOptions{Pin: s.pin, Certificate: cert})
	if _, err := initv1.NewInitClient(conn).Facts(t.Context(), &initv1.FactsRequest{}); err != nil {
		t.Error(err)
	}
}

func TestSelfSignedRefusesUnfitKeys(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := SelfSigned(key, "machine", time.Now()); err == nil || c != nil {
		t.Errorf("a certificate was made for P-384: %v", err)
	}
}

// cache counts what a client is given for later.
type cache struct{ puts chan struct{} }

func (c cache) Get(string) (*tls.ClientSessionState, bool) { return nil, false }
func (c cache) Put(_ string, s *tls.ClientSessionState) {
	if s != nil {
		c.puts <- struct{}{}
	}
}

func TestNoSessionIsEverResumed(t *testing.T) {
	t.Parallel()
	s := open(t, ServerOptions{}, AnyKey, joiner{}, initer{})
	c := cache{make(chan struct{}, 16)}
	config := hostile(t)
	config.ClientSessionCache = c
	for range 3 {
		conn, err := dialTLS(t, s.addr, config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 9)); err != nil { // the server's settings: tickets would have come before
			t.Fatal(err)
		}
		if conn.ConnectionState().DidResume {
			t.Error("a session was resumed")
		}
		_ = conn.Close()
	}
	if len(c.puts) > 0 {
		t.Errorf("the server gave %d tickets", len(c.puts))
	}
}
