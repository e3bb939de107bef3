// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// ServerOptions configures a [Server].
type ServerOptions struct {
	TLS *tls.Config // made by ServerTLS
	// Authorize has one rule for each full method name, such as "/slipway.join.v1.Join/Join". The server calls the rule before it
	// reads the first message. A rule refuses the call by returning a *Refusal. A method without a rule is always refused.
	Authorize map[string]func(ctx context.Context, p Peer) error

	Limits  Limits                   // optional
	Timeout map[string]time.Duration // optional: of a whole call, by full method name; see NoTimeout. Default: Limits.Call
	Audit   func(Refused)            // optional: called for each refusal, from any goroutine; must not block. Default: refusals are logged
	Log     *slog.Logger             // optional
}

// Server serves gRPC to unauthenticated clients. It implements grpc.ServiceRegistrar, so the generated Register functions accept
// it. Every registered method runs behind its rule, and the server offers no other methods, not even reflection.
type Server struct {
	options ServerOptions
	grpc    *grpc.Server
	limiter *limiter
	audit   auditor
	log     *slog.Logger
	panics  atomic.Int64
}

var _ grpc.ServiceRegistrar = (*Server)(nil)

// NewServer returns a server that is not running yet. Register the services, then call Serve.
func NewServer(o ServerOptions) *Server {
	o.Limits = o.Limits.withDefaults()
	s := &Server{options: o, limiter: newLimiter(o.Limits), log: o.Log}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.audit = auditor{limiter: s.limiter, report: o.Audit}
	if o.Audit == nil {
		s.audit.report = func(r Refused) {
			s.log.Warn("call refused", "id", r.ID, "peer", r.Peer.Addr, "key", r.Peer.Key, "method", r.Method, "code", r.Code, "reason", r.Reason, "suppressed", r.Suppressed)
		}
	}
	l := o.Limits
	s.grpc = grpc.NewServer(
		grpc.Creds(serverCredentials{config: o.TLS}),
		grpc.ConnectionTimeout(l.Handshake),
		grpc.MaxRecvMsgSize(l.Message),
		grpc.MaxHeaderListSize(uint32(l.Headers)),
		grpc.MaxConcurrentStreams(uint32(l.Streams)),
		// Flow control windows do not grow, so a client that does not read cannot make the server buffer much.
		grpc.StaticStreamWindowSize(64<<10), grpc.StaticConnWindowSize(256<<10),
		grpc.ReadBufferSize(8<<10), grpc.WriteBufferSize(8<<10),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTimeout, MaxConnectionIdle: l.Idle}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveMinTime}),
		grpc.InTapHandle(s.tap),
		grpc.UnknownServiceHandler(s.unknown),
	)
	return s
}

// RegisterService puts every method of the service behind its rule. The generated Register functions call it. Register all
// services before calling Serve.
func (s *Server) RegisterService(d *grpc.ServiceDesc, impl any) {
	guarded := *d
	guarded.Methods = make([]grpc.MethodDesc, len(d.Methods))
	for i, m := range d.Methods {
		guarded.Methods[i] = grpc.MethodDesc{MethodName: m.MethodName, Handler: s.guardUnary("/"+d.ServiceName+"/"+m.MethodName, m.Handler)}
	}
	guarded.Streams = make([]grpc.StreamDesc, len(d.Streams))
	for i, m := range d.Streams {
		m.Handler = s.guardStream("/"+d.ServiceName+"/"+m.StreamName, m.Handler)
		guarded.Streams[i] = m
	}
	s.grpc.RegisterService(&guarded, impl)
}

// Serve accepts connections until Stop or GracefulStop. It closes the listener before it returns.
func (s *Server) Serve(l net.Listener) error {
	return s.grpc.Serve(newListener(l, s.limiter, s.audit))
}

// Stop stops the server and closes all connections.
func (s *Server) Stop() { s.grpc.Stop() }

// GracefulStop accepts no new calls and waits, without limit, for the running ones to end.
func (s *Server) GracefulStop() { s.grpc.GracefulStop() }

// Panics returns how many calls have ended in a panic.
func (s *Server) Panics() int64 { return s.panics.Load() }

// Refusal is the error by which rules and handlers refuse a call. A client sees only Code, Public and ID. Any other error counts
// as a fault of the server, and the client sees codes.Internal without its text.
type Refusal struct {
	Code   codes.Code // codes.OK means codes.PermissionDenied
	Reason string     // the full reason, for the audit log
	Public string     // optional: what the client is told. Default: "refused"
	ID     string     // optional: the id of the refusal in the handler's own audit log. Default: a new one

	// WrongClock tells the client that the call was refused because this server's clock is wrong; see [IsWrongClock].
	WrongClock bool
}

func (r *Refusal) Error() string { return r.Reason }

// An ErrorInfo with this domain and reason marks a refusal because of the server's clock.
const (
	errorDomain      = "slipway.dev"
	wrongClockReason = "WRONG_CLOCK"
)

// GRPCStatus returns what the client is told. It keeps Reason secret even where gRPC itself translates the error.
func (r *Refusal) GRPCStatus() *status.Status {
	code, public := r.Code, r.Public
	if code == codes.OK {
		code = codes.PermissionDenied
	}
	if public == "" {
		public = "refused"
	}
	s := status.New(code, public)
	if r.WrongClock {
		if detailed, err := s.WithDetails(&errdetails.ErrorInfo{Domain: errorDomain, Reason: wrongClockReason}); err == nil {
			s = detailed
		}
	}
	return s
}

// Refused describes one refusal to Audit.
type Refused struct {
	ID         string // the client was told the same id, where it could be told anything
	At         time.Time
	Peer       Peer   // without a key when the handshake had not finished
	Method     string // full method name; "" for a refused connection
	Code       codes.Code
	Reason     string
	Suppressed int // number of earlier refusals that were not reported because there were too many (Limits.Reports)
}

// auditor reports as many refusals as the limiter allows.
type auditor struct {
	limiter *limiter
	report  func(Refused)
}

func (a auditor) refused(source netip.Addr, r Refused) {
	suppressed, ok := a.limiter.allowReport(source, r.At)
	if !ok {
		return
	}
	r.Suppressed = suppressed
	a.report(r)
}

// newID returns a random id that is long enough to find a refusal in the audit log.
func newID() string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return hex.EncodeToString(b[:])
}
