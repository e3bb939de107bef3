// SPDX-License-Identifier: Apache-2.0

package initserver

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/rpc"
	"github.com/slipway-project/slipway/internal/sleep"
)

// secretHeader is the metadata key of the secret in every call.
const secretHeader = "slipway-init-secret-bin"

const (
	initTimeout = 2 * time.Minute // a ticket may arrive over a slow connection
	stopTimeout = time.Second     // for the calls in progress when the server stops
)

// serve answers calls on ln until ctx ends. Then it gives the streams time for a last answer and closes the listener.
func (s *Server) serve(ctx context.Context, ln net.Listener) error {
	limits := s.cfg.Limits
	if limits.Message == 0 {
		limits.Message = maxTicket + 4096
	}
	server := rpc.NewServer(rpc.ServerOptions{
		TLS: rpc.ServerTLS(s.cfg.Certificate, rpc.NoClients),
		Authorize: map[string]func(context.Context, rpc.Peer) error{
			initv1.Init_Facts_FullMethodName: s.authorize,
			initv1.Init_Init_FullMethodName:  s.authorize,
			initv1.Init_Watch_FullMethodName: s.authorize,
			initv1.Init_Done_FullMethodName:  s.authorize,
		},
		Timeout: map[string]time.Duration{initv1.Init_Init_FullMethodName: initTimeout, initv1.Init_Watch_FullMethodName: rpc.NoTimeout},
		Limits:  limits, Audit: s.cfg.Audit, Log: s.cfg.Log,
	})
	initv1.RegisterInitServer(server, service{Server: s, stopping: ctx.Done()})
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		force := time.AfterFunc(stopTimeout, server.Stop)
		server.GracefulStop()
		force.Stop()
	})
	err := server.Serve(ln)
	if stop() { // ctx has not ended
		server.Stop()
		return fmt.Errorf("serve init on %s: %w", ln.Addr(), err)
	}
	<-stopped
	return context.Cause(ctx)
}

// authorize accepts calls with the secret. It gives other clients no information.
func (s *Server) authorize(ctx context.Context, p rpc.Peer) error {
	md, _ := metadata.FromIncomingContext(ctx)
	given := md.Get(secretHeader)
	if len(given) != 1 {
		given = []string{""}
	}
	ok, tries := s.guard.check(ctx, p.Addr.Addr(), []byte(given[0]))
	if ok {
		return nil
	}
	if bits.OnesCount(uint(tries)) == 1 { // log the 1st, 2nd, 4th … time only: guessing must not fill the log
		s.cfg.Log.Warn("refused a client with a wrong init secret", "source", p.Addr.Addr().String(), "tries", tries)
	}
	return &rpc.Refusal{Code: codes.PermissionDenied, Reason: "wrong init secret"}
}

// refuse returns an error that is shown to a client with the secret.
func refuse(code codes.Code, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	return &rpc.Refusal{Code: code, Reason: text, Public: text}
}

// service implements the gRPC service for clients with the secret.
type service struct {
	initv1.UnimplementedInitServer
	*Server
	stopping <-chan struct{} // closed when the server stops: streams must end
}

func (s service) Facts(context.Context, *initv1.FactsRequest) (*initv1.FactsReply, error) {
	return &initv1.FactsReply{Slipway: s.cfg.Slipway, Facts: s.cfg.Machine.Facts().Encode(), Lock: s.cfg.Lock.State().String()}, nil
}

func (s service) Init(_ context.Context, req *initv1.InitRequest) (*initv1.InitReply, error) {
	phase, err := s.begin(req.GetId(), req.GetTicket())
	if err != nil {
		return nil, err
	}
	return &initv1.InitReply{Phase: phase}, nil
}

// Done ends the service of a committed request. It refuses any other request.
func (s service) Done(_ context.Context, req *initv1.DoneRequest) (*initv1.DoneReply, error) {
	s.mu.Lock()
	r := s.req
	s.mu.Unlock()
	if r == nil || r.id != req.GetId() || s.cfg.Lock.State().Phase != lock.Committed {
		return nil, refuse(codes.FailedPrecondition, "request %s is not committed on this machine", truncate(req.GetId()))
	}
	s.fetchedOnce.Do(func() { close(s.fetched) })
	return &initv1.DoneReply{}, nil
}

func (s service) Watch(req *initv1.WatchRequest, stream grpc.ServerStreamingServer[initv1.Event]) error {
	s.mu.Lock()
	r := s.req
	s.mu.Unlock()
	if r == nil || r.id != req.GetId() {
		return refuse(codes.NotFound, "unknown request %s: this machine is %s", truncate(req.GetId()), s.cfg.Lock.State())
	}
	for n := 0; ; {
		events, next, ended, changed := r.feed.after(n)
		for _, e := range events {
			if err := stream.Send(wire(e)); err != nil {
				return err
			}
		}
		if ended {
			return nil
		}
		if n = next; len(events) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-s.stopping:
			if state := s.cfg.Lock.State(); state.By == lock.Join {
				return refuse(codes.FailedPrecondition, "this machine is %s", state)
			}
			return refuse(codes.Unavailable, "the agent is stopping: retry")
		}
	}
}

func wire(e Event) *initv1.Event {
	out := &initv1.Event{UnixNano: e.Time.UnixNano(), Phase: e.Phase, Item: e.Item, ItemPhase: e.ItemPhase, Text: e.Text}
	if e.outcome != nil {
		out.Result = &initv1.Result{Cluster: e.outcome.Result.Cluster, Kubeconfig: e.outcome.Result.Kubeconfig, Error: e.outcome.Why}
	}
	return out
}

// guard checks the init secret and delays clients that guess. A source with a wrong secret waits before its next check, longer each
// time. A client with the right secret cannot be locked out: the delay has a maximum, other sources are not delayed, and the
// memory and the number of delayed calls are limited. If too many calls are delayed, the next one is checked at once.
type guard struct {
	hash [sha256.Size]byte
	open bool // false: there is no valid secret, and every check fails

	mu      sync.Mutex // guards the fields below
	wrong   map[netip.Prefix]failures
	waiting int // delayed calls
}

type failures struct {
	count int
	last  time.Time
}

const (
	firstWait   = 100 * time.Millisecond
	longestWait = 5 * time.Second
	forgetAfter = 10 * time.Minute
	maxSources  = 1024
	maxWaiting  = 64
)

func newGuard(hash [sha256.Size]byte, open bool) *guard {
	return &guard{hash: hash, open: open, wrong: map[netip.Prefix]failures{}}
}

// check reports whether the secret is right. tries is the number of consecutive wrong secrets from this source.
func (g *guard) check(ctx context.Context, source netip.Addr, secret []byte) (ok bool, tries int) {
	from := prefix(source)
	if delay := g.enter(from); delay > 0 {
		err := sleep.For(ctx, delay)
		g.leave()
		if err != nil {
			return false, 0
		}
	}
	sum := sha256.Sum256(secret)
	right := subtle.ConstantTimeCompare(sum[:], g.hash[:]) == 1 && g.open
	g.mu.Lock()
	defer g.mu.Unlock()
	if right {
		delete(g.wrong, from)
		return true, 0
	}
	f := g.wrong[from]
	if f.count == 0 && len(g.wrong) >= maxSources {
		g.evictLocked()
	}
	g.wrong[from] = failures{f.count + 1, time.Now()}
	return false, f.count + 1
}

// enter returns the delay for a call from this source. If it is positive, the caller must call leave after it.
func (g *guard) enter(from netip.Prefix) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	f, ok := g.wrong[from]
	if !ok || g.waiting >= maxWaiting {
		return 0
	}
	if time.Since(f.last) > forgetAfter {
		delete(g.wrong, from)
		return 0
	}
	g.waiting++
	return min(longestWait, firstWait<<min(f.count-1, 10))
}

func (g *guard) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting--
}

// evictLocked removes the source with the fewest wrong secrets; among those, the oldest one.
func (g *guard) evictLocked() {
	var victim netip.Prefix
	for p, f := range g.wrong {
		v, ok := g.wrong[victim]
		if !ok || f.count < v.count || (f.count == v.count && f.last.Before(v.last)) {
			victim = p
		}
	}
	delete(g.wrong, victim)
}

// prefix identifies a source: an IPv4 address, or the /64 of an IPv6 address, which one machine can have for itself.
func prefix(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	p, err := a.Prefix(bits)
	if err != nil {
		return netip.Prefix{} // all sources without an address count as one
	}
	return p
}
