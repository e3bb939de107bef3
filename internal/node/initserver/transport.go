// SPDX-License-Identifier: Apache-2.0

package initserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
)

// secretHeader carries the secret with every call.
const secretHeader = "slipway-init-secret-bin"

// serve answers on ln until ctx ends; then streams get a last word, and the listener is closed.
func (s *Server) serve(ctx context.Context, ln net.Listener) error {
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true, NextProtos: []string{"h2"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.cfg.Certificate() },
	}
	server := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(config)), grpc.MaxRecvMsgSize(maxTicket+4096), grpc.MaxConcurrentStreams(16),
		grpc.ConnectionTimeout(10*time.Second), grpc.MaxHeaderListSize(16<<10), grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if err := s.authorize(ctx, info.FullMethod); err != nil {
				return nil, err
			}
			return handler(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			if err := s.authorize(stream.Context(), info.FullMethod); err != nil {
				return err
			}
			return handler(srv, stream)
		}),
	)
	initv1.RegisterInitServer(server, service{Server: s, ending: ctx.Done()})
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(ln) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve init on %s: %w", ln.Addr(), err)
	case <-ctx.Done():
	}
	stopGently(server)
	<-failed
	return context.Cause(ctx)
}

// stopGently lets calls end that are about to, and waits no longer than that for anybody.
func stopGently(server *grpc.Server) {
	force := time.AfterFunc(500*time.Millisecond, server.Stop)
	defer force.Stop()
	server.GracefulStop()
}

// authorize lets in who has the secret, and tells everybody else nothing at all.
func (s *Server) authorize(ctx context.Context, method string) error {
	source := sourceOf(ctx)
	md, _ := metadata.FromIncomingContext(ctx)
	secrets := md.Get(secretHeader)
	if len(secrets) != 1 {
		secrets = []string{""}
	}
	ok, tries := s.guard.check(ctx, source, []byte(secrets[0]))
	if ok {
		return nil
	}
	if bits.OnesCount(uint(tries)) == 1 { // the 1st, 2nd, 4th … time: guessing must not fill the log
		s.cfg.Log.Warn("a caller with a wrong init secret was refused", "source", source.String(), "tries", tries)
	}
	s.cfg.Refused(source.String(), method, "wrong init secret")
	return status.Error(codes.PermissionDenied, "refused")
}

func sourceOf(ctx context.Context) netip.Addr {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return netip.Addr{}
	}
	at, err := netip.ParseAddrPort(p.Addr.String())
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr()
}

// refuse is an answer to a caller who has shown the secret.
func refuse(code codes.Code, format string, args ...any) error {
	return status.Errorf(code, format, args...)
}
