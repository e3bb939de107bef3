// SPDX-License-Identifier: Apache-2.0

// Package joinserver admits machines to the cluster: it verifies what a machine proves, asks the cluster's records which node it is,
// sends the node's ticket, and signs the certificates that the ticket's plan wants. Afterwards each node keeps a stream open, which
// carries new rosters, renewed certificates and, for a control plane, the steps of joining etcd.
//
// It does not trust what a machine says about itself and copies no name from a request into a certificate. A machine that is refused
// learns only an ID; the audit log has the reason under that ID.
//
// Read [Config] first, then [Server.Join] and [Server.Sync]. A [Reason] says why a machine was admitted, told to wait or refused.
//
//	hello → challenge → proof → (records decide) → grant → keys → certificates
//
//	s, err := joinserver.New(joinserver.Config{Cluster: id, Self: ownPin, Records: registry, …})
//	go s.Run(ctx)
//	g := rpc.NewServer(rpc.ServerOptions{TLS: rpc.ServerTLS(certificate, rpc.AnyKey), Authorize: s.Rules(), Timeout: joinserver.Timeouts()})
//	joinv1.RegisterJoinServer(g, s.Service())
package joinserver

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"time"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/attest"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/membership"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/rpc"
)

// Config is what a join service needs. The functions are called from any goroutine.
type Config struct {
	Cluster   string  // the cluster's ID
	Self      pin.Pin // of this machine's own key: a machine never joins itself
	Records   Records
	Verifiers map[string]attest.Verifier // by the name in the hello
	Tickets   Tickets
	Signer    Signer
	Members   Members
	Rosters   Rosters
	// Heartbeat reports whether Kubernetes has received a recent heartbeat of the node. It is called when a node's key is used from
	// another address than the record's, or another key from the node's address.
	Heartbeat    func(ctx context.Context, node string) (recent bool, err error)
	ControlPlane func(pool string) bool // whether the pool's machines are control planes; only those get secrets and may join etcd
	Audit        func(Entry)            // called for every decision
	Log          *slog.Logger

	ByAddress func(pool string) bool // optional: whether a machine may replace a silent one of the pool that had its address

	Now     func() time.Time // optional: time.Now
	Workers int              // optional: how many signatures are made or verified at once; twice the number of processors
}

// Records are the cluster's records of its nodes. All methods are called from any goroutine. An error is not a decision: it neither
// admits a machine nor ends the stream of a node.
type Records interface {
	// Admit decides about a machine and writes the decision. The same request gets the same answer again. It fails with an
	// *admission.Refusal or a *wait.Error; after any other error the decision is unknown.
	Admit(ctx context.Context, r admission.Request) (admission.Node, error)
	// ByKey returns the record of the machine with this key, and whether there is one.
	ByKey(ctx context.Context, key pin.Pin) (admission.Node, bool, error)
	// Nodes returns all records.
	Nodes(ctx context.Context) ([]admission.Node, error)
	// Watch calls changed when it starts and after each change, until the context ends.
	Watch(ctx context.Context, changed func()) error
}

// Tickets makes the ticket of a node. The same record gives the same ticket. The secrets are the files that all control planes share.
type Tickets interface {
	For(ctx context.Context, node admission.Node) (ticket plan.Ticket, secrets []plan.TicketFile, err error)
}

// Signer signs a certificate with exactly the contents that w describes, for the public key. It returns the leaf as PEM.
type Signer interface {
	Sign(w pki.Want, pub crypto.PublicKey) ([]byte, error)
}

// Members adds control planes to etcd, one at a time.
type Members interface {
	// Admit is called every 200 ms for as long as the node asks, which renews its membership lease; never twice at once for one node.
	Admit(ctx context.Context, node admission.Node, started bool) (membership.Progress, error)
}

// Rosters returns the newest signed roster. Changed is closed when there is a newer one.
type Rosters interface {
	Current() (signed []byte, generation uint64, changed <-chan struct{})
}

// Server is the join service of one control plane. It is safe for concurrent use.
type Server struct {
	Config
	workers   chan struct{} // limits the signatures that are made or verified at once
	nodes     *nodeList
	certified *certifiedKeys
	limits    *nodeLimits
}

// New checks the configuration. It starts nothing.
func New(c Config) (*Server, error) {
	for name, missing := range map[string]bool{
		"Cluster": c.Cluster == "", "Self": c.Self == "", "Records": c.Records == nil, "Verifiers": len(c.Verifiers) == 0, "Tickets": c.Tickets == nil,
		"Signer": c.Signer == nil, "Members": c.Members == nil, "Rosters": c.Rosters == nil, "Heartbeat": c.Heartbeat == nil, "ControlPlane": c.ControlPlane == nil, "Audit": c.Audit == nil,
	} {
		if missing {
			return nil, fmt.Errorf("make join service: %s is not set", name)
		}
	}
	if c.Log == nil {
		return nil, errors.New("make join service: Log is not set")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Workers <= 0 {
		c.Workers = 2 * runtime.GOMAXPROCS(0)
	}
	return &Server{
		Config: c, workers: make(chan struct{}, c.Workers), nodes: &nodeList{},
		certified: &certifiedKeys{owners: map[pin.Pin]owner{}}, limits: &nodeLimits{nodes: map[pin.Pin]*usage{}},
	}, nil
}

// work runs do when fewer than Workers others run: unauthenticated clients must not take the processor from the machine's components.
func (s *Server) work(ctx context.Context, do func() error) error {
	select {
	case s.workers <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.workers }()
	return do()
}

// Channel is the connection of a stream: its peer, and the secret that only its two ends share.
type Channel interface {
	Peer() rpc.Peer
	Exporter() ([]byte, error)
}

// JoinStream is the stream of a machine that joins. Recv returns an error when the stream ends, at the latest soon after Join has returned.
type JoinStream interface {
	Send(*joinv1.JoinReply) error
	Recv() (*joinv1.JoinRequest, error)
}

// SyncStream is the stream of a node. Recv behaves as that of JoinStream.
type SyncStream interface {
	Send(*joinv1.SyncReply) error
	Recv() (*joinv1.SyncRequest, error)
}

// Service returns the server for registration with a gRPC server of package rpc.
func (s *Server) Service() joinv1.JoinServer { return service{server: s} }

// Rules returns who may call what, for rpc.ServerOptions. Every machine may call Join and Clock. Only machines with a record may
// call Sync; their connections do not count against the limits for unauthenticated clients.
func (s *Server) Rules() map[string]func(context.Context, rpc.Peer) error {
	return map[string]func(context.Context, rpc.Peer) error{
		joinv1.Join_Join_FullMethodName:  func(context.Context, rpc.Peer) error { return nil },
		joinv1.Join_Clock_FullMethodName: func(context.Context, rpc.Peer) error { return nil },
		joinv1.Join_Sync_FullMethodName: func(ctx context.Context, peer rpc.Peer) error {
			e, err := s.begin(tlsChannel{peer: peer}, "sync")
			if err == nil {
				_, err = e.record(ctx)
			}
			return e.end(err)
		},
	}
}

// Timeouts returns the time limits of the two streams, for rpc.ServerOptions. Sync has none.
func Timeouts() map[string]time.Duration {
	return map[string]time.Duration{joinv1.Join_Join_FullMethodName: 30 * time.Second, joinv1.Join_Sync_FullMethodName: rpc.NoTimeout}
}

type service struct {
	joinv1.UnimplementedJoinServer
	server *Server
}

func (g service) Join(stream joinv1.Join_JoinServer) error {
	ch, err := channelOf(stream.Context())
	if err != nil {
		return err
	}
	return g.server.Join(stream.Context(), ch, stream)
}

func (g service) Sync(stream joinv1.Join_SyncServer) error {
	ch, err := channelOf(stream.Context())
	if err != nil {
		return err
	}
	return g.server.Sync(stream.Context(), ch, stream)
}

// Clock returns the time of this control plane, to every client.
func (g service) Clock(context.Context, *joinv1.ClockRequest) (*joinv1.ClockReply, error) {
	return &joinv1.ClockReply{UnixNano: g.server.Now().UnixNano()}, nil
}

// tlsChannel is a Channel over package rpc.
type tlsChannel struct {
	peer     rpc.Peer
	exporter func() ([]byte, error)
}

func (c tlsChannel) Peer() rpc.Peer            { return c.peer }
func (c tlsChannel) Exporter() ([]byte, error) { return c.exporter() }

func channelOf(ctx context.Context) (Channel, error) {
	peer, err := rpc.PeerFrom(ctx)
	if err != nil {
		return nil, err
	}
	return tlsChannel{peer: peer, exporter: func() ([]byte, error) { return rpc.Exporter(ctx) }}, nil
}

// session is one stream: its peer, and the peer's node once that is known.
type session struct {
	*Server
	ch    Channel
	peer  rpc.Peer
	key   *ecdsa.PublicKey
	node  admission.Node // zero until the record is known
	entry Entry          // what all audit entries of the stream have in common
}

// begin starts a session. It returns one with an error, too, so that the caller can audit the refusal.
func (s *Server) begin(ch Channel, call string) (*session, error) {
	peer := ch.Peer()
	e := &session{Server: s, ch: ch, peer: peer, entry: Entry{ID: newID(), Call: call, Peer: peer.Addr, Key: peer.Key}}
	key, ok := peer.Public.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() || peer.Key == "" {
		return e, deny(BadKeyKind, "the machine's key is %T, want ECDSA P-256", peer.Public)
	}
	e.key = key
	return e, nil
}

func (e *session) address() netip.Addr { return e.peer.Addr.Addr().Unmap() }

// claim sets the name that audit entries show to what the peer says, until its record is known.
func (e *session) claim(name string) { e.entry.Node = printable(name, maxAuditName) }

// setNode sets the peer's node.
func (e *session) setNode(n admission.Node) {
	e.node = n
	e.claim(n.Name)
}

// record reads the peer's record as it is now.
func (e *session) record(ctx context.Context) (admission.Node, error) {
	node, found, err := e.Records.ByKey(ctx, e.peer.Key)
	switch {
	case err != nil:
		return admission.Node{}, fmt.Errorf("read record: %w", err)
	case !found:
		return admission.Node{}, deny(Stranger, "no record has its key")
	case node.Key != e.peer.Key:
		return admission.Node{}, fmt.Errorf("read record: got that of another machine, node %s", node.Name)
	case node.Removing:
		return admission.Node{}, beingRemoved(node.Name)
	}
	return node, nil
}

// ticket makes the ticket of the session's node. It returns an error for a ticket of another node, and for a worker's ticket with
// anything that only control planes may have.
func (e *session) ticket(ctx context.Context) (plan.Ticket, []plan.TicketFile, error) {
	ticket, secrets, err := e.Tickets.For(ctx, e.node)
	switch {
	case err != nil:
		return plan.Ticket{}, nil, fmt.Errorf("plan for node %s: %w", e.node.Name, err)
	case ticket.Cluster != e.Cluster || ticket.Plan.Node != e.node.Name:
		return plan.Ticket{}, nil, fmt.Errorf("plan for node %s: got a ticket of node %q in cluster %q", e.node.Name, ticket.Plan.Node, ticket.Cluster)
	case e.ControlPlane(e.node.Pool):
		return ticket, secrets, nil
	case len(secrets) > 0:
		return plan.Ticket{}, nil, fmt.Errorf("plan for node %s: a worker's ticket has secrets of the control plane", e.node.Name)
	}
	if _, found := ticket.Plan.Process("kube-apiserver"); found || len(ticket.Control) > 0 {
		return plan.Ticket{}, nil, fmt.Errorf("plan for node %s: a worker's ticket makes it a control plane", e.node.Name)
	}
	return ticket, nil, nil
}
