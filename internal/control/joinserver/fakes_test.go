// SPDX-License-Identifier: Apache-2.0

package joinserver_test

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/membership"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/roster"
	"github.com/slipway-project/slipway/internal/testkit"
)

// For is joinserver.Tickets: a small plan, and the secret canary for control planes.
func (w *world) For(_ context.Context, n admission.Node) (plan.Ticket, []plan.TicketFile, error) {
	var b plan.Builder
	for _, want := range wantsOf(n) {
		b.Add(plan.Cert{Want: want})
	}
	var secrets []plan.TicketFile
	var document []byte
	if n.Pool == "main" {
		b.Add(plan.Cert{Want: pki.Want{Name: "etcd-peer", Kind: pki.Leaf, Signer: "etcd-ca", CommonName: n.Name, KeyPath: "/k", CertPath: "/c", SignerCert: "/sc", SignerKey: "/sk"}})
		b.Add(plan.Unit{Name: "kube-apiserver", Args: []string{"/kube-apiserver"}})
		secrets = []plan.TicketFile{{Path: "/etc/kubernetes/pki/ca.key", Mode: 0o600, Content: []byte(canary)}}
		document = []byte(`{}`)
	}
	signed, _, _ := w.rosters.Current()
	t := plan.Ticket{
		Version: plan.Version, Cluster: w.id, Plan: b.Plan("dev", n.Name, "1.36.4"), Control: document,
		Files: []plan.TicketFile{{Path: "/etc/kubernetes/pki/join-ca.crt", Mode: 0o644, Content: w.ca.PEM()}, {Path: "/var/lib/slipway/state/roster.json", Mode: 0o600, Content: signed}},
	}
	w.tickets(&t, &secrets)
	return t, secrets, nil
}

func wantsOf(n admission.Node) []pki.Want {
	return []pki.Want{
		{Name: "kubelet", Kind: pki.Leaf, Signer: "ca", CommonName: "system:node:" + n.Name, Organizations: []string{"system:nodes"}, Usages: []pki.Usage{pki.ClientAuth}, KeyPath: "/a"},
		{Name: "kube-proxy", Kind: pki.Leaf, Signer: "ca", CommonName: "system:kube-proxy", Usages: []pki.Usage{pki.ClientAuth}, KeyPath: "/b"},
	}
}

// Sign is joinserver.Signer.
func (w *world) Sign(want pki.Want, pub crypto.PublicKey) ([]byte, error) {
	if w.wrongClock.Load() {
		return nil, fmt.Errorf("issue: %w", &pki.ClockError{Text: "the clock says that it is yesterday"})
	}
	w.signed.Add(1)
	c, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(w.signed.Load()), Subject: pkix.Name{CommonName: want.CommonName, Organization: want.Organizations}, NotAfter: time.Now().Add(time.Hour),
	}, w.cluster.Cert, pub, w.cluster.Key)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c}), err
}

func (w *world) roster(generation uint64) (signed []byte, _ uint64) {
	return w.ca.Roster(w.tb, roster.Roster{Cluster: w.id, Generation: generation, API: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:6443")}}), generation
}

// book is the registry, whose list can be made to be an old one.
type book struct {
	*registry.Registry
	old   atomic.Bool
	wrong atomic.Bool // it lets in another machine than the one that asks
	lists atomic.Int64
}

// Admit is joinserver.Records.
func (b *book) Admit(ctx context.Context, r admission.Request) (admission.Node, error) {
	n, err := b.Registry.Admit(ctx, r)
	if b.wrong.Load() {
		n.Key = "sha256:another"
	}
	return n, err
}

// forget makes the service's list of records an empty one, as a list of long ago would be.
func (w *world) forget(t *testing.T) {
	t.Helper()
	w.book.old.Store(true)
	for range 2 { // at the second question the first answer is known
		asked := w.book.lists.Load()
		_, err := w.registry.UpdateNode(t.Context(), "dev-main-1", func(n *admission.Node) error { n.Kubernetes += "x"; return nil })
		if err == nil {
			_, err = w.registry.UpdateNode(t.Context(), "dev-main-1", func(n *admission.Node) error { n.Kubernetes = ""; return nil })
		}
		if err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "a question for the list", func() bool { return w.book.lists.Load() > asked })
	}
}

// Nodes is joinserver.Records.
func (b *book) Nodes(ctx context.Context) ([]admission.Node, error) {
	defer b.lists.Add(1)
	if b.old.Load() {
		return nil, nil
	}
	return b.Registry.Nodes(ctx)
}

// fakeRosters is joinserver.Rosters.
type fakeRosters struct {
	mu         sync.Mutex // guards the fields below
	signed     []byte
	generation uint64
	changed    chan struct{}
}

func newRosters() *fakeRosters { return &fakeRosters{changed: make(chan struct{})} }

func (r *fakeRosters) Current() ([]byte, uint64, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.signed, r.generation, r.changed
}

func (r *fakeRosters) publish(signed []byte, generation uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.signed, r.generation = signed, generation
	close(r.changed)
	r.changed = make(chan struct{})
}

// fakeMembers is joinserver.Members; answer decides.
type fakeMembers struct {
	mu     sync.Mutex // guards the fields below
	answer func(n admission.Node, started bool) (membership.Progress, error)
	asked  int
}

func (m *fakeMembers) Admit(_ context.Context, n admission.Node, started bool) (membership.Progress, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	if m.answer == nil {
		return membership.Progress{}, nil
	}
	return m.answer(n, started)
}

func (m *fakeMembers) set(answer func(admission.Node, bool) (membership.Progress, error)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answer = answer
}
