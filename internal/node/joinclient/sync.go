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
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/rpc"
	"github.com/slipway-project/slipway/internal/sleep"
)

// SyncConfig is what a node stays in touch with.
type SyncConfig struct {
	Endpoints  func() []netip.AddrPort // join services, from the newest roster
	Pin        pin.Pin                 // of the cluster's join CA
	Key        *ecdsa.PrivateKey       // the machine's
	Node       string
	Slipway    string
	Generation func() uint64             // of the roster that the node has
	Roster     func(signed []byte) error // takes a newer one; it checks the signature
	Log        *slog.Logger
	Report     func(Status) // called at each change of what is waited for, never twice at once

	Own    func() netip.AddrPort // optional: the node's own join service, once it may be asked: it is asked first
	From   func() netip.Addr     // optional: the machine's address
	Now    func() time.Time      // optional: the machine's clock, for certificates; time.Now when nil
	Clock  Clock                 // optional: TLS when nil
	Dial   Dialer                // optional: TLS when nil
	Random func(n int) int       // optional: a number in [0, n)
}

// Sync keeps one stream to some join service, for as long as Run runs. Its methods are safe for concurrent use.
type Sync struct {
	SyncConfig
	renewals chan *renewal
	members  chan *memberRun
	denied   func() // optional: hears that a service of the cluster has said no
	leaving  func() // optional: … or that the node is being removed
}

// NewSync starts nothing.
func NewSync(c SyncConfig) (*Sync, error) {
	if c.Endpoints == nil || c.Key == nil || c.Generation == nil || c.Roster == nil || c.Log == nil || c.Report == nil || c.Node == "" {
		return nil, errors.New("sync: Endpoints, Key, Node, Generation, Roster, Log and Report must be set")
	}
	if _, err := pin.Parse(string(c.Pin)); err != nil {
		return nil, fmt.Errorf("sync: the pin of the cluster's join CA: %w", err)
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
	return &Sync{SyncConfig: c, renewals: make(chan *renewal), members: make(chan *memberRun)}, nil
}

// line is one stream to a join service.
type line struct {
	at     netip.AddrPort
	conn   Conn
	stream SyncStream
	leash  *leash
}

func (l *line) close() {
	l.leash.end()
	_ = l.conn.Close() // nothing is lost with it
}

// steady is how long a stream lives at least that has not failed.
const steady = 10 * time.Second

// Run stays in touch until the context ends. Nothing else ends it: a node that is refused asks again, slowly.
func (s *Sync) Run(ctx context.Context) error {
	k := &keeper{Sync: s, places: newPlaces(s.Random), says: reporter{report: s.Report}}
	for {
		l, soon := k.connect(ctx)
		if l == nil {
			if err := sleep.For(ctx, soon); err != nil {
				return err
			}
			continue
		}
		begun := time.Now()
		err := k.serve(ctx, l)
		l.close()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		k.lost(l.at, err, time.Since(begun) >= steady)
	}
}

// keeper is the state of one Run.
type keeper struct {
	*Sync
	places *places
	says   reporter
	asked  *renewal // on the present stream, or to be asked on the next; nil: none
	member *memberRun
}

// connect opens a stream to the endpoint that answers first, or says how long it is no use to try.
func (k *keeper) connect(ctx context.Context) (*line, time.Duration) {
	endpoints := k.Endpoints()
	own := k.Own()
	if own.IsValid() {
		endpoints = append([]netip.AddrPort{own}, endpoints...)
	}
	due, soon := k.places.due(endpoints)
	if i := slices.Index(due, own); i > 0 && k.places.failures(own) == 0 {
		due = slices.Insert(slices.Delete(due, i, i+1), 0, own)
	}
	open := func(race context.Context, at netip.AddrPort) (*line, error) {
		l, err := k.open(ctx, race, at)
		return l, clocks(race, at, err, k.Now, k.Clock)
	}
	if l, ok := race(ctx, due, open, k.failed); ok {
		return l, 0
	}
	k.says.tell(k.unreachable(endpoints))
	if len(due) > 0 {
		_, soon = k.places.due(endpoints)
	}
	return nil, soon
}

// open goes as far as a stream that has taken the hello; a server that is not the right one fails here.
func (k *keeper) open(base, race context.Context, at netip.AddrPort) (_ *line, err error) {
	ctx, leash := newLeash(base, race, attemptTime, "no connection")
	l := &line{at: at, leash: leash}
	defer func() {
		if err == nil {
			leash.limit(0, "")
			leash.free()
			return
		}
		err = leash.broken(base, l.conn, err)
	}()
	if l.conn, err = k.Dial(ctx, at); err != nil {
		return nil, err
	}
	if l.stream, err = l.conn.Sync(ctx); err != nil {
		return nil, err
	}
	return l, l.stream.Send(&joinv1.SyncRequest{Message: &joinv1.SyncRequest_Hello{Hello: &joinv1.SyncHello{
		Cluster: k.Pin.ClusterID(), Node: k.Node, Slipway: k.Slipway, Generation: k.Generation(),
	}}})
}

func (k *keeper) failed(at netip.AddrPort, err error) { k.lost(at, err, false) }

// lost takes note of how a stream, or the way to one, has ended.
func (k *keeper) lost(at netip.AddrPort, err error, lived bool) {
	no, denied := refusal(err)
	k.giveBack(denied, err)
	u, wrongClock := errors.AsType[*untimely](err)
	switch {
	case wrongClock:
		k.places.untimely(at, u.Error())
	case denied:
		k.Log.Warn("sync refused", "endpoint", at, "why", no)
		k.places.refused(at, no)
		if k.denied != nil && status.Code(err) == codes.PermissionDenied { // and not an answer that nobody understands
			k.denied()
		}
	case rpc.IsUntrusted(err):
		k.Log.Error("this is not the cluster's join service: go on without it", "endpoint", at, "pin", k.Pin, "why", plainly(err))
		k.places.mistrusted(at, plainly(err))
	case status.Code(err) == codes.Aborted: // the service says so of a node that is on its way out, and still counts
		k.places.failed(at, errLeaving.Error())
		if k.leaving != nil {
			k.leaving()
		}
	case lived:
		k.places.good(at)
	default:
		k.places.failed(at, plainly(err))
	}
}

func (k *keeper) unreachable(endpoints []netip.AddrPort) Status {
	if what, ok := k.places.clock(endpoints); ok {
		return clockStatus(what)
	}
	if at, no, ok := k.places.no(endpoints); ok {
		return Status{For: wait.For{What: "leave to stay in the cluster", Who: "the cluster's operator: the audit of " + at.String() + " says why"}, Detail: no}
	}
	if len(endpoints) == 0 {
		return Status{For: wait.For{What: "the address of a join service", Who: "slipway up or join: this machine has lost the roster and where it has joined"}}
	}
	var texts []string
	for _, at := range unique(endpoints) {
		texts = append(texts, at.String())
	}
	return Status{For: wait.For{What: "a join service", Who: "a control plane at " + strings.Join(texts, ", ")}, Detail: k.places.heard(endpoints)}
}
