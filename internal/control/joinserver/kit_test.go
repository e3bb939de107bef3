// SPDX-License-Identifier: Apache-2.0

package joinserver_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/attest"
	"github.com/slipway-project/slipway/internal/attest/key"
	"github.com/slipway-project/slipway/internal/attest/token"
	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/control/joinserver"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/control/registry/registrytest"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/rpc"
)

const canary = "CANARY-of-the-control-planes" // what no worker, log or audit may ever hold

// world is a cluster with one control plane's join service, on loopback.
type world struct {
	tb       testing.TB
	id       string
	pin      pin.Pin
	ca       certtest.Authority // the join CA
	cluster  certtest.Authority // signs kubelets
	store    *registrytest.Memory
	registry *registry.Registry
	book     *book
	server   *joinserver.Server
	own      *ecdsa.PrivateKey // of the machine that serves
	endpoint netip.AddrPort
	members  *fakeMembers
	rosters  *fakeRosters
	signed   atomic.Int64 // certificates
	tickets  func(*plan.Ticket, *[]plan.TicketFile)
	skew     atomic.Int64 // of the server's clock
	alive    atomic.Bool  // what Kubernetes says of every node
	silent   atomic.Bool  // … or nothing at all

	wrongClock atomic.Bool // of who signs

	mu      sync.Mutex // guards the fields below
	entries []joinserver.Entry
	refused []rpc.Refused
}

func pinOf(tb testing.TB, k crypto.PublicKey) pin.Pin {
	tb.Helper()
	p, err := pin.OfKey(k)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func policy(context.Context) (admission.Policy, error) {
	return admission.Policy{
		Cluster: "dev", APIServer: "1.36.4", PodCIDR: netip.MustParsePrefix("10.0.0.0/12"), NodePodPrefix: 24, ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"),
		Pools: map[string]admission.Pool{"main": {ControlPlane: true}, "worker": {}, "cattle": {ByAddress: true}},
	}, nil
}

// Machines of the spec: an address and a share each.
func specNode(name, pool string, index int) admission.Node {
	share, _ := admission.PodCIDR(netip.MustParsePrefix("10.0.0.0/12"), 24, index)
	return admission.Node{Name: name, Pool: pool, Index: index, PodCIDR: share}
}

// newWorld starts the service. Limits are those of package rpc unless a test floods it.
func newWorld(tb testing.TB, limits rpc.Limits) *world {
	tb.Helper()
	w := &world{
		tb: tb, ca: certtest.NewAuthority(tb, "dev join"), cluster: certtest.NewAuthority(tb, "dev kubernetes"), store: registrytest.NewMemory(),
		members: &fakeMembers{}, rosters: newRosters(), tickets: func(*plan.Ticket, *[]plan.TicketFile) {},
	}
	w.pin, w.id = w.ca.Pin(), w.ca.ClusterID()
	w.registry = registry.New(w.store, w.now).WithPolicy(policy)
	w.book = &book{Registry: w.registry}
	w.own = certtest.Key(tb)
	self := specNode("dev-main-0", "main", 0)
	self.Key, self.Address = pinOf(tb, w.own.Public()), netip.MustParseAddr("127.0.0.1")
	if err := w.registry.Register(tb.Context(), []admission.Node{self, specNode("dev-main-1", "main", 1), specNode("dev-worker-0", "worker", 2)}); err != nil {
		tb.Fatal(err)
	}
	w.rosters.publish(w.roster(1))
	w.serve(limits)
	return w
}

// loose are limits for tests that connect more often than a stranger may.
func loose() rpc.Limits {
	free := rpc.Rate{PerSecond: 1e6, Burst: 1e6}
	return rpc.Limits{Connections: free, ConnectionsAll: free, Calls: free, Total: 4096}
}

func (w *world) now() time.Time { return time.Now().Add(time.Duration(w.skew.Load())) }

func (w *world) serve(limits rpc.Limits) {
	server, err := joinserver.New(joinserver.Config{
		Cluster: w.id, Self: pinOf(w.tb, w.own.Public()), Records: w.book,
		Verifiers: map[string]attest.Verifier{"key": key.Verifier{}, "token": token.Verifier{Records: w.registry}},
		Tickets:   w, Signer: w, Members: w.members, Rosters: w.rosters,
		Heartbeat:    func(context.Context, string) (bool, error) { return w.alive.Load(), w.mute() },
		ByAddress:    func(pool string) bool { return pool == "cattle" },
		ControlPlane: func(pool string) bool { return pool == "main" }, Audit: w.heard, Log: slog.New(slog.DiscardHandler), Now: w.now,
	})
	if err != nil {
		w.tb.Fatal(err)
	}
	w.server = server
	certificate := w.serverCertificate(w.ca)
	g := rpc.NewServer(rpc.ServerOptions{
		TLS:       rpc.ServerTLS(func() (*tls.Certificate, error) { return certificate, nil }, rpc.AnyKey),
		Authorize: server.Rules(), Timeout: joinserver.Timeouts(), Limits: limits, Audit: w.rejected,
	})
	joinv1.RegisterJoinServer(g, server.Service())
	w.endpoint = serveOn(w.tb, g)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Run(ctx) }()
	w.tb.Cleanup(func() { cancel(); <-done })
}

// serveOn listens on 127.0.0.1, which is the address of dev-main-0.
func serveOn(tb testing.TB, g *rpc.Server) netip.AddrPort {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(l) }()
	tb.Cleanup(func() { g.Stop(); <-done })
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func (w *world) serverCertificate(by certtest.Authority) *tls.Certificate {
	return by.Server(w.tb, "dev-main-0", net.IPv4(127, 0, 0, 1))
}

func (w *world) mute() error {
	if w.silent.Load() {
		return errors.New("the API server does not answer")
	}
	return nil
}

func (w *world) heard(e joinserver.Entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.entries = append(w.entries, e)
}

func (w *world) rejected(r rpc.Refused) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refused = append(w.refused, r)
}

func (w *world) audit() []joinserver.Entry {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.entries)
}
