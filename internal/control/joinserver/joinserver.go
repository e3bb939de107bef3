// SPDX-License-Identifier: Apache-2.0

// Package joinserver lets machines into the cluster: it checks what a machine proves, asks the cluster's records who it is,
// hands it its ticket, and signs the certificates that the ticket's plan wants. Nodes of the cluster stay in touch with it for
// as long as they live (rosters, renewals, a control plane's way into etcd). It never believes what a machine says of itself,
// never copies a name out of a request into a certificate, and tells a stranger nothing but an id; the true reason goes to the
// audit under the same id.
//
// Read [Config] first, then [Server.Join] and [Server.Sync]; a [Reason] is why a machine was let in, told to wait or refused.
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
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/slipway-project/slipway/internal/attest"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/membership"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// Config is what a join service works with.
type Config struct {
	Cluster      string  // its id
	Self         pin.Pin // pin of this machine's own key: a machine never joins itself
	Records      Records
	Verifiers    map[string]attest.Verifier // by the name that a hello gives
	Tickets      Tickets
	Signer       Signer
	Members      Members
	Rosters      Rosters
	Alive        func(ctx context.Context, node string) (bool, error) // whether Kubernetes has heard of the node lately; called when its key comes from a new address, or another key from its own
	ControlPlane func(pool string) bool                               // whether the pool's machines are control planes; nobody else is given secrets or a way into etcd
	Audit        func(Entry)                                          // called for everything that is decided, from any goroutine
	Log          *slog.Logger

	ByAddress func(pool string) bool // optional: whether a machine may take the place of a silent one of the pool by its address

	Now     func() time.Time // optional: the clock; time.Now when nil
	Workers int              // optional: how many signatures are made or checked at once; 0: twice the processors
}

// Records are the cluster's records of its machines. All methods are called from any goroutine. An error is never an answer:
// nobody is let in and nobody is thrown out by it.
type Records interface {
	// Admit decides, writes down what was decided, and may be repeated. Its errors are *admission.Refusal, *admission.Wait, or
	// that nobody knows.
	Admit(ctx context.Context, r admission.Request) (admission.Node, error)
	// ByKey finds the record of the machine with this key.
	ByKey(ctx context.Context, key pin.Pin) (admission.Node, bool, error)
	// Nodes lists all records.
	Nodes(ctx context.Context) ([]admission.Node, error)
	// Watch calls changed at its start and after each change, until the context ends.
	Watch(ctx context.Context, changed func()) error
}

// Tickets plans for nodes. The same record gives the same ticket. Secrets are the files that control planes share.
type Tickets interface {
	For(ctx context.Context, node admission.Node) (ticket plan.Ticket, secrets []plan.TicketFile, err error)
}

// Signer signs what a Want describes for a public key, and puts nothing else into the certificate. The answer is PEM, the leaf only.
type Signer interface {
	Sign(w pki.Want, pub crypto.PublicKey) ([]byte, error)
}

// Members leads control planes into etcd, one at a time.
type Members interface {
	// Admit is called again every 200 ms while the node asks, which keeps its turn; never twice at once for one node.
	Admit(ctx context.Context, node admission.Node, started bool) (membership.Progress, error)
}

// Rosters gives the newest signed roster. Changed is closed when there is a newer one.
type Rosters interface {
	Current() (signed []byte, generation uint64, changed <-chan struct{})
}

// Server is the join service of one control plane. It is safe for concurrent use.
type Server struct {
	Config
	slots    chan struct{} // one token for each signature that is being made or checked
	standing *standing
	used     *usedKeys
	budgets  *budgets
}

// New checks the configuration and starts nothing.
func New(c Config) (*Server, error) {
	for name, missing := range map[string]bool{
		"Cluster": c.Cluster == "", "Self": c.Self == "", "Records": c.Records == nil, "Verifiers": len(c.Verifiers) == 0, "Tickets": c.Tickets == nil,
		"Signer": c.Signer == nil, "Members": c.Members == nil, "Rosters": c.Rosters == nil, "Alive": c.Alive == nil, "ControlPlane": c.ControlPlane == nil, "Audit": c.Audit == nil,
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
	return &Server{Config: c, slots: make(chan struct{}, c.Workers), standing: newStanding(), used: newUsedKeys(), budgets: newBudgets()}, nil
}

// work does what costs processor time: a bounded number at once, so that strangers cannot take the machine from its components.
func (s *Server) work(ctx context.Context, do func() error) error {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.slots }()
	return do()
}
