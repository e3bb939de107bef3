// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/core/pin"
)

// wrongSigner signs with one key and claims another public key.
type wrongSigner struct {
	crypto.Signer
	claims crypto.PublicKey
}

func (w wrongSigner) Public() crypto.PublicKey { return w.claims }

// certify makes a certificate for any public key. The signer signs the certificate and the handshake.
func certify(t testing.TB, public crypto.PublicKey, signer *ecdsa.PrivateKey, names ...string) *tls.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, wrongSigner{signer, signer.Public()})
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: signer}
}

// nonCanonical encodes the P-256 key of a certificate in another way: its bits start three bits earlier, and three unused bits
// follow. If it were accepted, one key would have two pins.
func nonCanonical(t testing.TB, der []byte) []byte {
	t.Helper()
	at := bytes.Index(der, []byte{0x03, 66, 0, 4}) // BIT STRING of 66 bytes, no unused bits, uncompressed point
	if at < 0 {
		t.Fatal("the certificate has no P-256 key")
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

// presents makes a client present this certificate, whatever the server asks for.
func presents(cert *tls.Certificate) func(*tls.Config) {
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
		"no certificate":         {presents(&tls.Certificate{}), []string{"didn't provide a certificate"}},
		"two certificates":       {presents(chain(2)), []string{"presents 2 certificates"}},
		"chain of 40 KiB":        {presents(chain(100)), []string{"more than 16384 bytes"}},
		"chain of 400 KiB":       {presents(chain(1000)), []string{"more than 16384 bytes"}},
		"RSA-2048":               {presents(certify(t, hugeRSA(2048), key)), []string{"key is RSA"}},
		"RSA-16384":              {presents(certify(t, hugeRSA(16384), key)), []string{"RSA key larger than"}},
		"P-224":                  {presents(certify(t, p224.Public(), key)), []string{"curve P-224"}},
		"P-384":                  {presents(certify(t, p384.Public(), key)), []string{"curve P-384"}},
		"large certificate":      {presents(certify(t, key.Public(), key, names...)), []string{"more than 4096"}},
		"non-canonical key":      {presents(&tls.Certificate{Certificate: [][]byte{nonCanonical(t, own.Certificate[0])}, PrivateKey: key}), []string{"not in its canonical encoding"}},
		"another's certificate":  {presents(&tls.Certificate{Certificate: other.Certificate, PrivateKey: key}), []string{"invalid signature by the client certificate"}},
		"malformed certificate":  {presents(&tls.Certificate{Certificate: [][]byte{[]byte("garbage")}, PrivateKey: key}), []string{"parse client certificate"}},
		"server name, 300 bytes": {func(c *tls.Config) { c.ServerName = strings.Repeat("a", 300) }, []string{"300 bytes"}},
		"server name, 60 KiB":    {func(c *tls.Config) { c.ServerName = strings.Repeat("\x01ä", 20000) }, []string{"more than 16384 bytes"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, ServerOptions{}, AnyKey, joiner{}, initer{})
			config := attackerTLS(t)
			c.change(config)
			conn, err := dialTLS(t, s.addr, config)
			if err == nil {
				_, _ = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
				waitClosed(t, conn)
			}
			r := s.wait(t, append([]string{"TLS handshake"}, c.want...)...)
			if r.Peer.Key != "" || !r.Peer.Addr.IsValid() || r.Method != "" || r.Code != codes.Unauthenticated {
				t.Errorf("audit: %+v", r)
			}
			s.waitNoConnections(t)
		})
	}
}

// A server without client certificates does not ask for one.
func TestNoClients(t *testing.T) {
	t.Parallel()
	s := startServer(t, ServerOptions{}, NoClients, joiner{}, initer{})
	r, err := initv1.NewInitClient(s.dial(t)).Facts(t.Context(), &initv1.FactsRequest{})
	if err != nil || r.GetSlipway() != "" {
		t.Errorf("got facts %v, error %v", r, err)
	}
}

func TestZeroClientAuth(t *testing.T) {
	t.Parallel()
	s := startServer(t, ServerOptions{}, 0, joiner{}, initer{})
	if _, err := initv1.NewInitClient(s.dial(t)).Facts(t.Context(), &initv1.FactsRequest{}); err == nil {
		t.Error("a server without ClientAuth accepted a client")
	}
	s.wait(t, "accepts no client certificates")
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
	s := startServer(t, ServerOptions{}, AnyKey, joiner{}, initer{})
	conn := dialWith(t, s.addr, ClientOptions{Pin: s.pin, Certificate: cert})
	if _, err := initv1.NewInitClient(conn).Facts(t.Context(), &initv1.FactsRequest{}); err != nil {
		t.Error(err)
	}
}

func TestSelfSignedRefusesP384(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := SelfSigned(key, "machine", time.Now()); err == nil || c != nil {
		t.Errorf("got certificate %v, error %v for a P-384 key", c, err)
	}
}

// sessionCache counts the session tickets that a client gets.
type sessionCache struct{ puts chan struct{} }

func (c sessionCache) Get(string) (*tls.ClientSessionState, bool) { return nil, false }
func (c sessionCache) Put(_ string, s *tls.ClientSessionState) {
	if s != nil {
		c.puts <- struct{}{}
	}
}

func TestNoSessionIsEverResumed(t *testing.T) {
	t.Parallel()
	s := startServer(t, ServerOptions{}, AnyKey, joiner{}, initer{})
	c := sessionCache{make(chan struct{}, 16)}
	config := attackerTLS(t)
	config.ClientSessionCache = c
	for range 3 {
		conn, err := dialTLS(t, s.addr, config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 9)); err != nil { // the server's settings; session tickets would come before them
			t.Fatal(err)
		}
		if conn.ConnectionState().DidResume {
			t.Error("a session was resumed")
		}
		_ = conn.Close()
	}
	if len(c.puts) > 0 {
		t.Errorf("the server sent %d session tickets", len(c.puts))
	}
}

// authority is a test CA and the leaf that it has signed.
type authority struct {
	ca   *x509.Certificate
	key  *ecdsa.PrivateKey
	pin  pin.Pin
	leaf *tls.Certificate // chain: leaf, CA
}

func newAuthority(t testing.TB, change func(ca, leaf *x509.Certificate)) authority {
	t.Helper()
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "join-ca"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "join-server"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if change != nil {
		change(ca, leaf)
	}
	key, leafKey := certtest.Key(t), certtest.Key(t)
	a := authority{key: key, pin: pinOf(t, key)}
	a.ca = certtest.Sign(t, ca, ca, key.Public(), key)
	signed := certtest.Sign(t, leaf, a.ca, leafKey.Public(), key)
	a.leaf = &tls.Certificate{Certificate: [][]byte{signed.Raw, a.ca.Raw}, PrivateKey: leafKey}
	return a
}

func serving(cert *tls.Certificate) *tls.Config {
	return ServerTLS(func() (*tls.Certificate, error) { return cert, nil }, NoClients)
}

func TestTrust(t *testing.T) {
	t.Parallel()
	good, other := newAuthority(t, nil), newAuthority(t, nil)
	byPin := func(a authority) ClientOptions { return ClientOptions{CAPin: a.pin} }
	mixed := &tls.Certificate{Certificate: [][]byte{other.leaf.Certificate[0], good.ca.Raw}, PrivateKey: other.leaf.PrivateKey}
	bare := &tls.Certificate{Certificate: good.leaf.Certificate[:1], PrivateKey: good.leaf.PrivateKey}
	long := &tls.Certificate{Certificate: append(append([][]byte{}, other.leaf.Certificate...), good.ca.Raw), PrivateKey: other.leaf.PrivateKey}
	changed := func(change func(ca, leaf *x509.Certificate)) authority { return newAuthority(t, change) }
	expired := changed(func(_, leaf *x509.Certificate) { leaf.NotAfter = time.Now().Add(-time.Minute) })
	early := changed(func(_, leaf *x509.Certificate) { leaf.NotBefore = time.Now().Add(time.Minute) })
	oldCA := changed(func(ca, _ *x509.Certificate) { ca.NotAfter = time.Now().Add(-time.Minute) })
	notCA := changed(func(ca, _ *x509.Certificate) { ca.IsCA, ca.KeyUsage = false, x509.KeyUsageDigitalSignature })
	noSign := changed(func(ca, _ *x509.Certificate) { ca.KeyUsage = x509.KeyUsageDigitalSignature })
	otherHost := changed(func(_, leaf *x509.Certificate) { leaf.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 2)} })
	nameless := changed(func(_, leaf *x509.Certificate) { leaf.IPAddresses, leaf.Subject.CommonName = nil, "127.0.0.1" })
	client := changed(func(_, leaf *x509.Certificate) { leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} })
	named := changed(func(_, leaf *x509.Certificate) { leaf.DNSNames, leaf.IPAddresses = []string{"api.example"}, nil })
	_, self := identity(t)
	cases := map[string]struct {
		presents *tls.Certificate
		trusts   ClientOptions
		want     []string // nil: trusted
	}{
		"CA pin":                   {good.leaf, byPin(good), nil},
		"CA":                       {good.leaf, ClientOptions{CA: good.ca}, nil},
		"CA, leaf only":            {bare, ClientOptions{CA: good.ca}, nil},
		"name":                     {named.leaf, ClientOptions{CAPin: named.pin, ServerName: "api.example"}, nil},
		"CA pin of another":        {good.leaf, byPin(other), []string{"key of its CA is", "not " + string(other.pin)}},
		"another CA":               {good.leaf, ClientOptions{CA: other.ca}, []string{"unknown authority"}},
		"right CA, other's leaf":   {mixed, byPin(good), []string{"unknown authority"}},
		"CA not presented":         {bare, byPin(good), []string{"does not present its CA"}},
		"three certificates":       {long, byPin(good), []string{"presents 3 certificates"}},
		"pin of leaf as CA's":      {&tls.Certificate{Certificate: [][]byte{self.Certificate[0], self.Certificate[0]}, PrivateKey: self.PrivateKey}, ClientOptions{CAPin: pinOf(t, self.PrivateKey.(*ecdsa.PrivateKey))}, []string{"presents as its CA is not a CA"}},
		"CA without CA flag":       {notCA.leaf, byPin(notCA), []string{"presents as its CA is not a CA"}},
		"CA that may not sign":     {noSign.leaf, byPin(noSign), []string{"presents as its CA is not a CA"}},
		"expired leaf":             {expired.leaf, byPin(expired), []string{"its certificate was valid until", "but the local clock says"}},
		"leaf of tomorrow":         {early.leaf, byPin(early), []string{"its certificate is valid from", "but the local clock says"}},
		"expired CA":               {oldCA.leaf, byPin(oldCA), []string{"certificate of its CA was valid until"}},
		"expired leaf, any time":   {expired.leaf, ClientOptions{CAPin: expired.pin, AnyTime: true}, nil},
		"early leaf, any time":     {early.leaf, ClientOptions{CAPin: early.pin, AnyTime: true}, nil},
		"expired CA, any time":     {oldCA.leaf, ClientOptions{CAPin: oldCA.pin, AnyTime: true}, nil},
		"another CA, any time":     {good.leaf, ClientOptions{CA: other.ca, AnyTime: true}, []string{"unknown authority"}},
		"pin of another, any time": {good.leaf, ClientOptions{CAPin: other.pin, AnyTime: true}, []string{"key of its CA is"}},
		"other host, any time":     {otherHost.leaf, ClientOptions{CAPin: otherHost.pin, AnyTime: true}, []string{"valid for 127.0.0.2"}},
		"wrong clock here":         {good.leaf, ClientOptions{CAPin: good.pin, Now: func() time.Time { return time.Unix(1, 0) }}, []string{"the local clock says 1970-01-01T00:00:01Z"}},
		"leaf of another host":     {otherHost.leaf, byPin(otherHost), []string{"valid for 127.0.0.2, not 127.0.0.1"}},
		"address as name":          {nameless.leaf, byPin(nameless), []string{"use SANs instead"}},
		"leaf for clients":         {client.leaf, byPin(client), []string{"incompatible key usage"}},
		"other name":               {named.leaf, ClientOptions{CAPin: named.pin, ServerName: "other.example"}, []string{"valid for api.example, not other.example"}},
		"pin":                      {self, ClientOptions{Pin: pinOf(t, self.PrivateKey.(*ecdsa.PrivateKey))}, nil},
		"pin, expired":             {expired.leaf, ClientOptions{Pin: pinOf(t, expired.leaf.PrivateKey.(*ecdsa.PrivateKey))}, nil},
		"wrong pin":                {self, ClientOptions{Pin: good.pin}, []string{"its key is", "not " + string(good.pin)}},
		"CA's pin as pin":          {good.leaf, ClientOptions{Pin: good.pin}, []string{"its key is"}},
		"half a pin":               {self, ClientOptions{Pin: pinOf(t, self.PrivateKey.(*ecdsa.PrivateKey))[:30]}, []string{"its key is"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, ServerOptions{TLS: serving(c.presents)}, NoClients, joiner{}, initer{})
			_, err := initv1.NewInitClient(dialWith(t, s.addr, c.trusts)).Facts(t.Context(), &initv1.FactsRequest{})
			if got, want := IsWrongClock(err), err != nil && strings.Contains(err.Error(), "the local clock says"); got != want {
				t.Errorf("IsWrongClock: got %t, want %t: %v", got, want, err)
			}
			switch {
			case c.want == nil && err != nil:
				t.Errorf("got %v, want a trusted server", err)
			case c.want != nil && (err == nil || !containsAll(err.Error(), c.want) || !IsUntrusted(err)):
				t.Errorf("got %v (IsUntrusted: %t), want an error with %q", err, IsUntrusted(err), c.want)
			}
		})
	}
}

func TestContradictoryOptions(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, nil)
	cases := map[string]struct {
		target string
		o      ClientOptions
		want   string
	}{
		"nothing":    {"127.0.0.1:1", ClientOptions{}, "want exactly one"},
		"two":        {"127.0.0.1:1", ClientOptions{Pin: a.pin, CAPin: a.pin}, "want exactly one"},
		"all":        {"127.0.0.1:1", ClientOptions{Pin: a.pin, CAPin: a.pin, CA: a.ca}, "want exactly one"},
		"no port":    {"127.0.0.1", ClientOptions{Pin: a.pin}, "missing port"},
		"empty host": {":1", ClientOptions{CAPin: a.pin}, "name or address is missing"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := Dial(c.target, c.o)
			if err == nil {
				_ = conn.Close()
				t.Fatal("Dial accepted the options")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	if err := ClientTLS(ClientOptions{}).VerifyConnection(tls.ConnectionState{NegotiatedProtocol: "h2"}); err == nil {
		t.Error("a client without a pin or CA trusts a server")
	}
}

// A server must support TLS 1.3 and HTTP/2. A server that cannot be reached is not untrusted.
func TestOtherServers(t *testing.T) {
	t.Parallel()
	key, cert := identity(t)
	cases := map[string]struct {
		config *tls.Config
		want   string
	}{
		"TLS 1.2": {&tls.Config{Certificates: []tls.Certificate{*cert}, MaxVersion: tls.VersionTLS12, NextProtos: []string{"h2"}}, "protocol version"},
		"no ALPN": {&tls.Config{Certificates: []tls.Certificate{*cert}}, "does not offer the protocol h2"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := tls.Listen("tcp", "127.0.0.1:0", c.config)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					_ = conn.(*tls.Conn).HandshakeContext(t.Context())
					conn.Close()
				}
			}()
			_, err = initv1.NewInitClient(dialWith(t, l.Addr().String(), ClientOptions{Pin: pinOf(t, key)})).Facts(t.Context(), &initv1.FactsRequest{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := initv1.NewInitClient(dialWith(t, "127.0.0.1:1", ClientOptions{Pin: pinOf(t, key)})).Facts(ctx, &initv1.FactsRequest{})
	if err == nil || IsUntrusted(err) || IsUntrusted(nil) {
		t.Errorf("unreachable server: got %v (IsUntrusted: %t)", err, IsUntrusted(err))
	}
}

// An untrusted server is reported as such only until the next attempt to connect.
func TestUntrustedServerGoesAway(t *testing.T) {
	t.Parallel()
	s := startServer(t, ServerOptions{}, NoClients, joiner{}, initer{})
	wrong := newAuthority(t, nil)
	gone := make(chan struct{})
	client := initv1.NewInitClient(dialWith(t, s.addr, ClientOptions{Pin: wrong.pin, Dialer: func(ctx context.Context, address string) (net.Conn, error) {
		select {
		case <-gone:
			return nil, errors.New("no route to host")
		default:
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		}
	}}))
	if _, err := client.Facts(t.Context(), &initv1.FactsRequest{}); !IsUntrusted(err) {
		t.Fatalf("got %v, want an untrusted server", err)
	}
	close(gone)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := client.Facts(ctx, &initv1.FactsRequest{})
		if !IsUntrusted(err) && strings.Contains(err.Error(), "no route to host") {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("got %v, want a server that cannot be reached", err)
		}
	}
}
