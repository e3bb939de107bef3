// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// ServerOptions is all that a Server is made of.
type ServerOptions struct {
	TLS *tls.Config // of ServerTLS
	// Authorize holds the rule of each full method, "/slipway.join.v1.Join/Join". It is asked before the first message is read. A
	// method without a rule is refused, whoever calls. It says no by a Refusal.
	Authorize map[string]func(ctx context.Context, p Peer) error

	Limits  Limits                   // optional
	Timeout map[string]time.Duration // optional: of whole calls, by full method. See NoTimeout
	Audit   func(Refused)            // optional: hears of refusals, from any goroutine; must not block. Otherwise they are logged
	Log     *slog.Logger             // optional
}

// Server serves gRPC to strangers. It is a grpc.ServiceRegistrar: the generated Register functions take it. Every method of
// theirs runs behind the rules; there is no way around them, and nothing else is served, no reflection either.
type Server struct {
	options ServerOptions
	grpc    *grpc.Server
	gate    *gate
	audit   auditor
	log     *slog.Logger
	panics  atomic.Int64
}

var _ grpc.ServiceRegistrar = (*Server)(nil)

// NewServer makes a server; Serve starts it.
func NewServer(o ServerOptions) *Server {
	o.Limits = o.Limits.filled()
	s := &Server{options: o, gate: newGate(o.Limits), log: o.Log}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.audit = auditor{gate: s.gate, hear: o.Audit}
	if o.Audit == nil {
		s.audit.hear = s.logRefused
	}
	l := o.Limits
	s.grpc = grpc.NewServer(
		grpc.Creds(serverCredentials{config: o.TLS}),
		grpc.ConnectionTimeout(l.Handshake),
		grpc.MaxRecvMsgSize(l.Message),
		grpc.MaxHeaderListSize(uint32(l.Headers)),
		grpc.MaxConcurrentStreams(uint32(l.Streams)),
		// Windows that do not grow: what is sent and not yet read stays small, for strangers must not fill our memory.
		grpc.StaticStreamWindowSize(64<<10), grpc.StaticConnWindowSize(256<<10),
		grpc.ReadBufferSize(8<<10), grpc.WriteBufferSize(8<<10),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTimeout, MaxConnectionIdle: l.Idle}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveFastest}),
		grpc.InTapHandle(s.tap),
		grpc.UnknownServiceHandler(s.unknown),
	)
	return s
}

// Serve accepts connections until Stop. The listener is closed at the end.
func (s *Server) Serve(l net.Listener) error {
	return s.grpc.Serve(newListener(l, s.gate, s.audit))
}

// Stop ends the server and cuts all connections.
func (s *Server) Stop() { s.grpc.Stop() }

// GracefulStop takes no new calls and waits for the end of those that run, however long that takes.
func (s *Server) GracefulStop() { s.grpc.GracefulStop() }

// Panics is how many calls have ended in a panic.
func (s *Server) Panics() int64 { return s.panics.Load() }

func (s *Server) logRefused(r Refused) {
	s.log.Warn("refused", "id", r.ID, "peer", r.Peer.Addr, "key", r.Peer.Key, "method", r.Method, "code", r.Code, "why", r.Reason, "untold", r.Untold)
}

// RegisterService puts every method of the service behind its rule. Called by the generated Register functions, before Serve.
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
