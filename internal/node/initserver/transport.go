// SPDX-License-Identifier: Apache-2.0

package initserver

import (
	"context"
	"fmt"
	"math/bits"
	"net"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
	"github.com/slipway-project/slipway/internal/rpc"
)

// secretHeader carries the secret with every call.
const secretHeader = "slipway-init-secret-bin"

const (
	initTimeout = 2 * time.Minute // a ticket may come over a slow line
	farewell    = time.Second     // for calls that are about to end
)

// serve answers on ln until ctx ends; then streams get a last word, and the listener is closed.
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
	initv1.RegisterInitServer(server, service{Server: s, ending: ctx.Done()})
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		force := time.AfterFunc(farewell, server.Stop)
		server.GracefulStop()
		force.Stop()
	})
	err := server.Serve(ln)
	if stop() { // nobody has ended it
		server.Stop()
		return fmt.Errorf("serve init on %s: %w", ln.Addr(), err)
	}
	<-stopped
	return context.Cause(ctx)
}

// authorize lets in who has the secret, and tells everybody else nothing at all.
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
	if bits.OnesCount(uint(tries)) == 1 { // the 1st, 2nd, 4th … time: guessing must not fill the log
		s.cfg.Log.Warn("a caller with a wrong init secret was refused", "source", p.Addr.Addr().String(), "tries", tries)
	}
	return &rpc.Refusal{Code: codes.PermissionDenied, Reason: "wrong init secret"}
}

// refuse is an answer to a caller who has shown the secret: nothing of it needs to be hidden.
func refuse(code codes.Code, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	return &rpc.Refusal{Code: code, Reason: text, Public: text}
}
