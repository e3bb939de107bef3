// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
	"github.com/slipway-project/slipway/internal/certtest"
)

// authority is a CA of a test and the leaf it has signed.
type authority struct {
	ca   *x509.Certificate
	key  *ecdsa.PrivateKey
	pin  string
	leaf *tls.Certificate // its chain is leaf, CA
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
	weird := func(change func(ca, leaf *x509.Certificate)) authority { return newAuthority(t, change) }
	expired := weird(func(_, leaf *x509.Certificate) { leaf.NotAfter = time.Now().Add(-time.Minute) })
	early := weird(func(_, leaf *x509.Certificate) { leaf.NotBefore = time.Now().Add(time.Minute) })
	oldCA := weird(func(ca, _ *x509.Certificate) { ca.NotAfter = time.Now().Add(-time.Minute) })
	noCA := weird(func(ca, _ *x509.Certificate) { ca.IsCA, ca.KeyUsage = false, x509.KeyUsageDigitalSignature })
	noSign := weird(func(ca, _ *x509.Certificate) { ca.KeyUsage = x509.KeyUsageDigitalSignature })
	away := weird(func(_, leaf *x509.Certificate) { leaf.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 2)} })
	nameless := weird(func(_, leaf *x509.Certificate) { leaf.IPAddresses, leaf.Subject.CommonName = nil, "127.0.0.1" })
	client := weird(func(_, leaf *x509.Certificate) { leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} })
	named := weird(func(_, leaf *x509.Certificate) { leaf.DNSNames, leaf.IPAddresses = []string{"api.example"}, nil })
	_, self := identity(t)
	cases := map[string]struct {
		shows  *tls.Certificate
		trusts ClientOptions
		want   []string // nil: trusted
	}{
		"CA pin":                   {good.leaf, byPin(good), nil},
		"CA":                       {good.leaf, ClientOptions{CA: good.ca}, nil},
		"CA, leaf only":            {bare, ClientOptions{CA: good.ca}, nil},
		"name":                     {named.leaf, ClientOptions{CAPin: named.pin, ServerName: "api.example"}, nil},
		"CA pin of another":        {good.leaf, byPin(other), []string{"key of its CA is", "not " + other.pin}},
		"another CA":               {good.leaf, ClientOptions{CA: other.ca}, []string{"unknown authority"}},
		"right CA, other's leaf":   {mixed, byPin(good), []string{"unknown authority"}},
		"no CA shown":              {bare, byPin(good), []string{"does not show its CA"}},
		"three certificates":       {long, byPin(good), []string{"shows 3 certificates"}},
		"pin of leaf as CA's":      {&tls.Certificate{Certificate: [][]byte{self.Certificate[0], self.Certificate[0]}, PrivateKey: self.PrivateKey}, ClientOptions{CAPin: pinOf(t, self.PrivateKey.(*ecdsa.PrivateKey))}, []string{"calls its CA is none"}},
		"CA that is none":          {noCA.leaf, byPin(noCA), []string{"calls its CA is none"}},
		"CA that may not sign":     {noSign.leaf, byPin(noSign), []string{"calls its CA is none"}},
		"expired leaf":             {expired.leaf, byPin(expired), []string{"its certificate was valid until", "and the clock here says"}},
		"leaf of tomorrow":         {early.leaf, byPin(early), []string{"its certificate is valid from", "and the clock here says"}},
		"expired CA":               {oldCA.leaf, byPin(oldCA), []string{"certificate of its CA was valid until"}},
		"expired leaf, any time":   {expired.leaf, ClientOptions{CAPin: expired.pin, AnyTime: true}, nil},
		"early leaf, any time":     {early.leaf, ClientOptions{CAPin: early.pin, AnyTime: true}, nil},
		"expired CA, any time":     {oldCA.leaf, ClientOptions{CAPin: oldCA.pin, AnyTime: true}, nil},
		"another CA, any time":     {good.leaf, ClientOptions{CA: other.ca, AnyTime: true}, []string{"unknown authority"}},
		"pin of another, any time": {good.leaf, ClientOptions{CAPin: other.pin, AnyTime: true}, []string{"key of its CA is"}},
		"other host, any time":     {away.leaf, ClientOptions{CAPin: away.pin, AnyTime: true}, []string{"valid for 127.0.0.2"}},
		"wrong clock here":         {good.leaf, ClientOptions{CAPin: good.pin, Now: func() time.Time { return time.Unix(1, 0) }}, []string{"the clock here says 1970-01-01T00:00:01Z"}},
		"leaf of another host":     {away.leaf, byPin(away), []string{"valid for 127.0.0.2, not 127.0.0.1"}},
		"address as name":          {nameless.leaf, byPin(nameless), []string{"use SANs instead"}},
		"leaf for clients":         {client.leaf, byPin(client), []string{"incompatible key usage"}},
		"other name":               {named.leaf, ClientOptions{CAPin: named.pin, ServerName: "other.example"}, []string{"valid for api.example, not other.example"}},
		"pin":                      {self, ClientOptions{Pin: pinOf(t, self.PrivateKey.(*ecdsa.PrivateKey))}, nil},
		"pin, expired":             {expired.leaf, ClientOptions{Pin: pinOf(t, expired.leaf.PrivateKey.(*ecdsa.PrivateKey))}, nil},
		"wrong pin":                {self, ClientOptions{Pin: good.pin}, []string{"its key is", "not " + good.pin}},
		"CA's pin as pin":          {good.leaf, ClientOptions{Pin: good.pin}, []string{"its key is"}},
		"half a pin":               {self, ClientOptions{Pin: pinOf(t, self.PrivateKey.(*ecdsa.PrivateKey))[:30]}, []string{"its key is"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, ServerOptions{TLS: serving(c.shows)}, NoClients, joiner{}, initer{})
			_, err := initv1.NewInitClient(dialWith(t, s.addr, c.trusts)).Facts(t.Context(), &initv1.FactsRequest{})
			if got, want := IsUntimely(err), err != nil && strings.Contains(err.Error(), "the clock here says"); got != want {
				t.Errorf("untimely %t: %v", got, err)
			}
			switch {
			case c.want == nil && err != nil:
				t.Errorf("not trusted: %v", err)
			case c.want != nil && (err == nil || !holds(err.Error(), c.want) || !IsUntrusted(err)):
				t.Errorf("got %v (untrusted: %v), want words %q", err, IsUntrusted(err), c.want)
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
		"nothing":    {"127.0.0.1:1", ClientOptions{}, "exactly one of"},
		"two":        {"127.0.0.1:1", ClientOptions{Pin: a.pin, CAPin: a.pin}, "exactly one of"},
		"all":        {"127.0.0.1:1", ClientOptions{Pin: a.pin, CAPin: a.pin, CA: a.ca}, "exactly one of"},
		"no port":    {"127.0.0.1", ClientOptions{Pin: a.pin}, "missing port"},
		"empty host": {":1", ClientOptions{CAPin: a.pin}, "name or address must be given"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := Dial(c.target, c.o)
			if err == nil {
				_ = conn.Close()
				t.Fatal("dialled")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	if err := ClientTLS(ClientOptions{}).VerifyConnection(tls.ConnectionState{NegotiatedProtocol: "h2"}); err == nil {
		t.Error("a client without any trust trusts")
	}
}

// Whoever speaks less than TLS 1.3 and HTTP/2 is no server of ours; whoever is not there may come.
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
		t.Errorf("a server that is not there: %v", err)
	}
}
