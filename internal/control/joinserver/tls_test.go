// SPDX-License-Identifier: Apache-2.0

package joinserver_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/node/joinclient"
	"github.com/slipway-project/slipway/internal/rpc"
	"github.com/slipway-project/slipway/internal/testkit"
)

// TestHostileHandshakes are refused before gRPC hears of them; package rpc says why.
func TestHostileHandshakes(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(t *testing.T, m *machine, c *tls.Config)
		reason string
	}{
		"TLS 1.2": {func(_ *testing.T, _ *machine, c *tls.Config) {
			c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		}, "unsupported versions"},
		"no certificate": {func(_ *testing.T, _ *machine, c *tls.Config) { c.Certificates = nil }, "didn't provide a certificate"},
		"no ALPN":        {func(_ *testing.T, _ *machine, c *tls.Config) { c.NextProtos = nil }, "does not offer the protocol"},
		"two certificates": {func(t *testing.T, m *machine, c *tls.Config) {
			c.Certificates[0].Certificate = append(c.Certificates[0].Certificate, m.w.ca.Cert.Raw)
		}, "2 certificates"},
		"RSA key": {func(t *testing.T, _ *machine, c *tls.Config) { c.Certificates = []tls.Certificate{rsaCertificate(t)} }, "not ECDSA P-256"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, rpc.Limits{})
			m := stranger(w)
			config := clientTLS(t, m)
			tc.change(t, m, config)
			if err := knock(t, m, config); err == nil {
				t.Error("the handshake was taken")
			}
			testkit.Eventually(t, "a refusal", func() bool {
				w.mu.Lock()
				defer w.mu.Unlock()
				return len(w.refused) > 0
			})
			if got := w.refused[0]; !strings.Contains(got.Reason, tc.reason) || got.Peer.Addr.Addr() != m.address || len(w.audit()) != 0 {
				t.Errorf("refused for %q from %s", got.Reason, got.Peer.Addr)
			}
		})
	}
}

// A session is never resumed: what was removed in between would not be seen.
func TestNoResumption(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rpc.Limits{})
	m := worker(w)
	config := clientTLS(t, m)
	config.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	for range 3 {
		d := &tls.Dialer{Config: config, NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: m.address.AsSlice()}}}
		c, err := d.DialContext(t.Context(), "tcp", w.endpoint.String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 9)); err != nil { // tickets would have come before
			t.Fatal(err)
		}
		if c.(*tls.Conn).ConnectionState().DidResume {
			t.Error("the session was resumed")
		}
		c.Close()
	}
}

// The machine's side: a service with another CA is not spoken to, and learns neither the token nor the hello.
func TestWrongCAIsToldNothing(t *testing.T) {
	t.Parallel()
	wrong := newWorld(t, rpc.Limits{})
	right := newWorld(t, rpc.Limits{})
	m := stranger(wrong)
	m.token = "slipway.aaaaaaaa." + strings.Repeat("a", 32)
	config := m.config()
	config.Pin = right.pin
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	go func() { _, err := joinclient.Join(ctx, config); ended <- err }()
	testkit.Eventually(t, "a word about the service's CA", func() bool {
		said := m.said()
		return strings.Contains(said.Detail, "server not trusted") && strings.Contains(said.Detail, string(right.pin))
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if entries := wrong.audit(); len(entries) != 0 {
		t.Errorf("it heard %v", entries)
	}
}

func clientTLS(t *testing.T, m *machine) *tls.Config {
	t.Helper()
	certificate, err := rpc.SelfSigned(m.key, "x", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{*certificate}}
}

// knock is a handshake as far as the server's first word or its end.
func knock(t *testing.T, m *machine, config *tls.Config) error {
	t.Helper()
	raw, err := m.dialTCP(t.Context(), m.w.endpoint.String())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	c := tls.Client(raw, config)
	if err := c.HandshakeContext(t.Context()); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1)) // TLS 1.3 tells the client's fault after the handshake
	return err
}

func rsaCertificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	return tls.Certificate{Certificate: [][]byte{certtest.Sign(t, tmpl, tmpl, key.Public(), key).Raw}, PrivateKey: key}
}
