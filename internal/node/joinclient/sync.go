// SPDX-License-Identifier: Apache-2.0

package joinclient

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/rpc"
	"github.com/slipway-project/slipway/internal/sleep"
)

// SyncConfig is what a node needs to stay connected to its cluster.
type SyncConfig struct {
	Endpoints  func() []netip.AddrPort // returns the join services of the newest roster
	Pin        pin.Pin                 // of the cluster's join CA
	Key        *ecdsa.PrivateKey       // the machine's
	Node       string
	Slipway    string
	Generation func() uint64             // returns the generation of the roster that the node has
	Roster     func(signed []byte) error // checks the signature of a newer roster and stores it
	Log        *slog.Logger
	Report     func(Status) // called when the status changes, one call at a time

	Own    func() netip.AddrPort // optional: returns the node's own join service, once it is running; it is tried first
	From   func() netip.Addr     // optional: returns the machine's address
	Now    func() time.Time      // optional: the machine's clock, for certificates; time.Now when nil
	Clock  Clock                 // optional: TLSClock when nil
	Dial   Dialer                // optional: TLS when nil
	Random func(n int) int       // optional: returns a number in [0, n); math/rand/v2 when nil
}

// Sync keeps one stream to a join service open while Run runs. Its methods are safe for concurrent use.
type Sync struct {
	SyncConfig
	renewals chan *renewal
	members  chan *memberRequest
	denied   func() // optional: called when a join service of the cluster denies access
	removing func() // optional: called when a join service says that the node is being removed
}

// NewSync checks the configuration. It starts nothing.
func NewSync(c SyncConfig) (*Sync, error) {
	if c.Endpoints == nil || c.Key == nil || c.Generation == nil || c.Roster == nil || c.Log == nil || c.Report == nil || c.Node == "" {
		return nil, errors.New("sync: Endpoints, Key, Node, Generation, Roster, Log and Report must be set")
	}
	if _, err := pin.Parse(string(c.Pin)); err != nil {
		return nil, fmt.Errorf("sync: parse the pin of the cluster's join CA: %w", err)
	}
	if c.Own == nil {
		c.Own = func() netip.AddrPort { return netip.AddrPort{} }
	}
	if c.From == nil {
		c.From = func() netip.Addr { return netip.Addr{} }
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Clock == nil {
		c.Clock = TLSClock(c.Pin, c.Key, c.From)
	}
	if c.Dial == nil {
		c.Dial = TLS(c.Pin, c.Key, c.From, c.Now)
	}
	return &Sync{SyncConfig: c, renewals: make(chan *renewal), members: make(chan *memberRequest)}, nil
}

// minLife is how long a stream must live for its end not to count as a failure of the endpoint.
const minLife = 10 * time.Second

// Run stays connected until the context ends, and returns the context's error. A node that is refused keeps asking, slowly.
func (s *Sync) Run(ctx context.Context) error {
	r := &syncRun{Sync: s, history: newHistory(s.Random), status: reporter{report: s.Report}}
	for {
		conn, next := r.connect(ctx)
		if conn == nil {
			if err := sleep.For(ctx, next); err != nil {
				return err
			}
			continue
		}
		begun := time.Now()
		err := r.serve(ctx, conn.stream)
		conn.close()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.ended(conn.at, err, time.Since(begun) >= minLife)
	}
}

// syncRun is the state of one Run.
type syncRun struct {
	*Sync
	history *history
	status  reporter
	renewal *renewal       // sent on the current stream, or to be sent on the next; nil if there is none
	member  *memberRequest // likewise
}

// syncConn is one stream to a join service.
type syncConn struct {
	at       netip.AddrPort
	conn     Conn
	stream   SyncStream
	lifetime *lifetime
}

func (c *syncConn) close() {
	c.lifetime.end()
	_ = c.conn.Close() // everything that was received has been handled
}

// connect opens a stream to the endpoint that answers first. If there is none, it returns the time until the next attempt.
func (r *syncRun) connect(ctx context.Context) (*syncConn, time.Duration) {
	endpoints := r.Endpoints()
	own := r.Own()
	if own.IsValid() {
		endpoints = append([]netip.AddrPort{own}, endpoints...)
	}
	due, next := r.history.due(endpoints)
	if i := slices.Index(due, own); i > 0 && r.history.failures(own) == 0 {
		due = slices.Insert(slices.Delete(due, i, i+1), 0, own)
	}
	open := func(race context.Context, at netip.AddrPort) (*syncConn, error) {
		c, err := r.open(ctx, race, at)
		return c, explainClock(race, at, err, r.Now, r.Clock)
	}
	failed := func(at netip.AddrPort, err error) { r.ended(at, err, false) }
	if c, ok := race(ctx, due, open, failed); ok {
		return c, 0
	}
	r.status.set(r.unreachable(endpoints))
	if len(due) > 0 {
		_, next = r.history.due(endpoints)
	}
	return nil, next
}

// open opens a stream and sends the hello. It fails if the server is not a join service of the cluster.
func (r *syncRun) open(base, race context.Context, at netip.AddrPort) (_ *syncConn, err error) {
	ctx, lifetime := newLifetime(base, race, attemptTime, "no connection")
	c := &syncConn{at: at, lifetime: lifetime}
	defer func() {
		if err == nil {
			lifetime.limit(0, "")
			lifetime.detach()
			return
		}
		err = lifetime.abort(base, c.conn, err)
	}()
	if c.conn, err = r.Dial(ctx, at); err != nil {
		return nil, err
	}
	if c.stream, err = c.conn.Sync(ctx); err != nil {
		return nil, err
	}
	return c, c.stream.Send(&joinv1.SyncRequest{Message: &joinv1.SyncRequest_Hello{Hello: &joinv1.SyncHello{
		Cluster: r.Pin.ClusterID(), Node: r.Node, Slipway: r.Slipway, Generation: r.Generation(),
	}}})
}

// ended records why a stream has ended or could not be opened. stable means that the stream lived for at least minLife.
func (r *syncRun) ended(at netip.AddrPort, err error, stable bool) {
	text, refused := refusal(err)
	switch w := r.renewal; {
	case w == nil:
	case w.canceled():
		r.renewal = nil
	case refused: // after any other error, the next stream sends it again
		w.answer <- renewed{err: err}
		r.renewal = nil
	}
	c, wrongClock := errors.AsType[*clockError](err)
	switch {
	case wrongClock:
		r.history.wrongClock(at, c.Error())
	case refused:
		r.Log.Warn("sync refused", "endpoint", at, "reason", text)
		r.history.refused(at, text)
		if r.denied != nil && status.Code(err) == codes.PermissionDenied { // not for a protocol error
			r.denied()
		}
	case rpc.IsUntrusted(err):
		r.Log.Error("server is not a join service of the cluster, trying the others", "endpoint", at, "pin", r.Pin, "reason", message(err))
		r.history.untrusted(at, message(err))
	case status.Code(err) == codes.Aborted: // the service's answer to a node that is being removed
		r.history.failed(at, errRemoving.Error())
		if r.removing != nil {
			r.removing()
		}
	case stable:
		r.history.succeeded(at)
	default:
		r.history.failed(at, message(err))
	}
}

// unreachable returns the status while there is no stream.
func (r *syncRun) unreachable(endpoints []netip.AddrPort) Status {
	endpoints = unique(endpoints)
	if detail, ok := r.history.onlyClocks(endpoints); ok {
		return clockStatus(detail)
	}
	if at, text, ok := r.history.firstRefusal(endpoints); ok {
		return Status{
			For:    wait.For{What: "permission to stay in the cluster", Who: "the operator of the cluster (the audit log on " + at.String() + " has the reason)"},
			Detail: text,
		}
	}
	if len(endpoints) == 0 {
		return Status{For: wait.For{What: "the address of a join service", Who: "slipway up or slipway join (this machine has lost its roster and the endpoints that it joined with)"}}
	}
	return Status{For: wait.For{What: "a join service", Who: "a control plane at " + list(endpoints)}, Detail: r.history.summary(endpoints)}
}

var errRemoving = errors.New("the node is being removed, but still belongs to the cluster: wait for slipway node remove to finish")

// Removed reports whether the cluster has removed this node: a join service of the cluster denies access to the node's key. It fails
// if no join service answers before the context ends, and while the removal is in progress.
func Removed(ctx context.Context, c SyncConfig) (bool, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var denied, known, removing bool
	c.Generation = func() uint64 { return 0 } // so that the service sends a roster to a node that it knows
	c.Roster = func([]byte) error {
		known = true
		cancel()
		return nil
	}
	last := Status{}
	c.Report = func(s Status) { last = s }
	s, err := NewSync(c)
	if err != nil {
		return false, err
	}
	s.denied = func() {
		denied = true
		cancel()
	}
	s.removing = func() {
		removing = true
		cancel()
	}
	err = s.Run(ctx)
	switch {
	case removing:
		return false, errRemoving
	case denied:
		return true, nil
	case known:
		return false, nil
	case last.Detail != "":
		return false, errors.New(last.Detail)
	}
	return false, err
}
