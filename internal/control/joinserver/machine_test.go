// SPDX-License-Identifier: Apache-2.0

package joinserver_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"log/slog"
	"net/netip"
	"sync"
	"testing"

	"github.com/slipway-project/slipway/internal/attest"
	attestkey "github.com/slipway-project/slipway/internal/attest/key"
	"github.com/slipway-project/slipway/internal/attest/token"
	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/core/admission"
	coremachine "github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/node/joinclient"
)

// machine is an honest machine: it joins by package joinclient, from its own loopback address.
type machine struct {
	w       *world
	key     *ecdsa.PrivateKey
	address netip.Addr
	token   string
	node    string
	version string

	mu       sync.Mutex // guards the fields below
	keys     map[string]*ecdsa.PrivateKey
	statuses []joinclient.Status
}

func (w *world) machine(address string) *machine {
	return &machine{w: w, key: certtest.Key(w.tb), address: netip.MustParseAddr(address), keys: map[string]*ecdsa.PrivateKey{}}
}

// expected gives the machine the spec's record of this name.
func (m *machine) expected(name string) *machine {
	m.w.tb.Helper()
	_, err := m.w.registry.UpdateNode(context.Background(), name, func(n *admission.Node) error {
		n.Key = m.pin()
		return nil
	})
	if err != nil {
		m.w.tb.Fatal(err)
	}
	return m
}

// invited gives the machine a token.
func (m *machine) invited(spec registry.TokenSpec) *machine {
	m.w.tb.Helper()
	_, text, err := m.w.registry.CreateToken(context.Background(), spec)
	if err != nil {
		m.w.tb.Fatal(err)
	}
	m.token = text
	return m
}

func (m *machine) pin() pin.Pin { return pinOf(m.w.tb, m.key.Public()) }

// Request is joinclient.Keys.
func (m *machine) Request(w pki.Want) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.keys[w.Name] == nil {
		m.keys[w.Name] = certtest.Key(m.w.tb)
	}
	return x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, m.keys[w.Name])
}

func (m *machine) says(s joinclient.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.statuses = append(m.statuses, s)
}

func (m *machine) said() joinclient.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.statuses) == 0 {
		return joinclient.Status{}
	}
	return m.statuses[len(m.statuses)-1]
}

func (m *machine) config() joinclient.Config {
	return joinclient.Config{
		Endpoints: func() []netip.AddrPort { return []netip.AddrPort{m.w.endpoint} }, Pin: m.w.pin, Key: m.key, Keys: m,
		Facts:      coremachine.Facts{Address: m.address},
		Kubernetes: m.version, Slipway: "0.3.0", Log: slog.New(slog.DiscardHandler), Report: m.says, Node: m.node, Prover: m.prover(),
	}
}

func (m *machine) join(t testing.TB) joinclient.Grant {
	t.Helper()
	g, err := joinclient.Join(t.Context(), m.config())
	if err != nil {
		t.Fatalf("join: %v; last heard: %+v", err, m.said())
	}
	return g
}

func (m *machine) prover() attest.Prover {
	if m.token != "" {
		return token.Prover{Text: m.token}
	}
	return attestkey.Prover{}
}
