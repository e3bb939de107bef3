// SPDX-License-Identifier: Apache-2.0

package joinclient_test

import (
	"context"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/hpke"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net/netip"
	"sync"
	"testing"
	"time"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/attest/key"
	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/core/handshake"
	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/roster"
	"github.com/slipway-project/slipway/internal/node/joinclient"
)

// cluster is a cluster with a join CA, and the keys of a machine that joins it.
type cluster struct {
	t       *testing.T
	ca      *ecdsa.PrivateKey
	cert    *x509.Certificate
	id      string
	pin     pin.Pin
	machine *ecdsa.PrivateKey
	kubelet *ecdsa.PrivateKey

	mu       sync.Mutex // guards the fields below
	statuses []joinclient.Status
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, ca: certtest.Key(t), machine: certtest.Key(t), kubelet: certtest.Key(t)}
	c.cert = c.sign(c.ca.Public(), "join", c.ca, true)
	c.pin = pin.OfCertificate(c.cert)
	c.id = c.pin.ClusterID()
	return c
}

func (c *cluster) sign(pub any, name string, by *ecdsa.PrivateKey, ca bool) *x509.Certificate {
	c.t.Helper()
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), IsCA: ca, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, pub, by)
	if err != nil {
		c.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		c.t.Fatal(err)
	}
	return cert
}

func pemOf(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

func (c *cluster) encode(v any) []byte {
	c.t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		c.t.Fatal(err)
	}
	return text
}

func (c *cluster) roster(by *ecdsa.PrivateKey) []byte {
	body := c.encode(roster.Roster{Cluster: c.id, Generation: 1})
	digest := roster.Digest(body)
	sig, err := ecdsa.SignASN1(rand.Reader, by, digest[:])
	if err != nil {
		c.t.Fatal(err)
	}
	return c.encode(roster.Signed{Body: body, Signature: sig})
}

func kubeletWant() pki.Want {
	return pki.Want{Name: "kubelet", Kind: pki.Leaf, Signer: "ca", CommonName: "system:node:n1", KeyPath: "/k"}
}

func (c *cluster) ticket() plan.Ticket {
	var b plan.Builder
	b.Add(plan.Cert{Want: kubeletWant()})
	return plan.Ticket{Version: plan.Version, Cluster: c.id, Plan: b.Plan("dev", "n1", "1.36.4"), Files: []plan.TicketFile{
		{Path: "/etc/kubernetes/pki/join-ca.crt", Mode: 0o644, Content: pemOf(c.cert)},
		{Path: "/var/lib/slipway/state/roster.json", Mode: 0o600, Content: c.roster(c.ca)},
	}}
}

func (c *cluster) secrets() []plan.TicketFile {
	return []plan.TicketFile{{Path: "/etc/kubernetes/pki/ca.key", Mode: 0o600, Content: []byte("secret")}}
}

// seal encrypts files for the machine and the node, as a join service does.
func (c *cluster) seal(hello *joinv1.Hello, node string, files any) []byte {
	c.t.Helper()
	pub, err := ecdh.X25519().NewPublicKey(hello.GetSealKey())
	if err != nil {
		c.t.Fatal(err)
	}
	to, err := hpke.NewDHKEMPublicKey(pub)
	if err != nil {
		c.t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(c.machine.Public())
	if err != nil {
		c.t.Fatal(err)
	}
	sealed, err := hpke.Seal(to, hpke.HKDFSHA256(), hpke.AES256GCM(), handshake.SealInfo(c.id, node, pin.Of(der)), c.encode(files))
	if err != nil {
		c.t.Fatal(err)
	}
	return sealed
}

// Request implements joinclient.Keys.
func (c *cluster) Request(pki.Want) ([]byte, error) {
	return x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, c.kubelet)
}

func (c *cluster) report(s joinclient.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.statuses = append(c.statuses, s)
}

func (c *cluster) said() []joinclient.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]joinclient.Status{}, c.statuses...)
}

func (c *cluster) config(dial joinclient.Dialer, endpoints ...netip.AddrPort) joinclient.Config {
	return joinclient.Config{
		Endpoints: func() []netip.AddrPort { return endpoints }, Pin: c.pin, Key: c.machine, Keys: c, Prover: key.Prover{},
		Facts: machine.Facts{Address: netip.MustParseAddr("192.0.2.7")}, Slipway: "0.3.0",
		Log: slog.New(slog.DiscardHandler), Report: c.report, Dial: dial, Random: func(int) int { return 0 },
	}
}

// script is how a service answers one stream: its reply to each message, or the error that ends the stream. A nil reply is silence.
type script struct {
	hello, proof, keys func(s *stream) (*joinv1.JoinReply, error)
}

// honest admits the machine.
func (c *cluster) honest() script {
	return script{
		hello: func(*stream) (*joinv1.JoinReply, error) {
			return &joinv1.JoinReply{Message: &joinv1.JoinReply_Challenge{Challenge: &joinv1.Challenge{Nonce: make([]byte, 32)}}}, nil
		},
		proof: func(s *stream) (*joinv1.JoinReply, error) {
			return granted(c.encode(c.ticket()), c.seal(s.hello, "n1", c.secrets())), nil
		},
		keys: func(*stream) (*joinv1.JoinReply, error) {
			return certified(map[string][]byte{"kubelet": pemOf(c.sign(c.kubelet.Public(), "system:node:n1", c.ca, false))}), nil
		},
	}
}

func granted(ticket, sealed []byte) *joinv1.JoinReply {
	return &joinv1.JoinReply{Message: &joinv1.JoinReply_Grant{Grant: &joinv1.Grant{Ticket: ticket, Sealed: sealed}}}
}

func certified(c map[string][]byte) *joinv1.JoinReply {
	return &joinv1.JoinReply{Message: &joinv1.JoinReply_Certificates{Certificates: &joinv1.Certificates{Certificates: c}}}
}

// conn runs a script on each stream.
type conn struct{ script func() script }

func (c conn) Close() error { return nil }

func (c conn) Join(ctx context.Context) (joinclient.JoinStream, error) {
	return &stream{ctx: ctx, script: c.script(), replies: make(chan func() (*joinv1.JoinReply, error), 8)}, nil
}

func (c conn) Sync(context.Context) (joinclient.SyncStream, error) { return nil, io.ErrUnexpectedEOF }

// stream is a join stream whose server is a script.
type stream struct {
	ctx     context.Context //nolint:containedctx // a stream ends with its context
	script  script
	hello   *joinv1.Hello
	replies chan func() (*joinv1.JoinReply, error)
}

func (s *stream) CloseSend() error          { return nil }
func (s *stream) Exporter() ([]byte, error) { return make([]byte, 32), nil }

func (s *stream) Send(m *joinv1.JoinRequest) error {
	var answer func(*stream) (*joinv1.JoinReply, error)
	switch m := m.GetMessage().(type) {
	case *joinv1.JoinRequest_Hello:
		s.hello, answer = m.Hello, s.script.hello
	case *joinv1.JoinRequest_Proof:
		answer = s.script.proof
	case *joinv1.JoinRequest_Keys:
		answer = s.script.keys
	}
	if answer != nil {
		s.replies <- func() (*joinv1.JoinReply, error) { return answer(s) }
	}
	return nil
}

func (s *stream) Recv() (*joinv1.JoinReply, error) {
	select {
	case reply := <-s.replies:
		return reply()
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}
