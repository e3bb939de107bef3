// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
	joinv1 "github.com/slipway-project/slipway/api/join/v1"
)

type (
	joinStream = grpc.BidiStreamingServer[joinv1.JoinRequest, joinv1.JoinReply]
	syncStream = grpc.BidiStreamingServer[joinv1.SyncRequest, joinv1.SyncReply]
)

func deny(code codes.Code, reason, public string) func(context.Context, Peer) error {
	return func(context.Context, Peer) error { return &Refusal{Code: code, Reason: reason, Public: public} }
}

// joinOnce opens a Join stream and returns how it ends.
func joinOnce(t *testing.T, s *site, sends ...*joinv1.JoinRequest) error {
	t.Helper()
	stream, err := joinv1.NewJoinClient(s.dial(t)).Join(t.Context())
	if err != nil {
		return err
	}
	for _, m := range sends {
		if err := stream.Send(m); err != nil {
			break
		}
	}
	_, err = stream.Recv()
	return err
}

func initOnce(t *testing.T, s *site, ticket []byte) error {
	t.Helper()
	_, err := initv1.NewInitClient(s.dial(t)).Init(t.Context(), &initv1.InitRequest{Id: "r1", Ticket: ticket})
	return err
}

func TestRulesDecide(t *testing.T) {
	t.Parallel()
	secret := "canary: the record of node-7"
	cases := map[string]struct {
		rules  map[string]func(context.Context, Peer) error
		code   codes.Code
		reason string
		public string
	}{
		"no rules":          {map[string]func(context.Context, Peer) error{}, codes.PermissionDenied, "no rule lets anybody call the method", "refused"},
		"rule of another":   {map[string]func(context.Context, Peer) error{methodWatch: anybody}, codes.PermissionDenied, "no rule", "refused"},
		"nil rule":          {map[string]func(context.Context, Peer) error{methodInit: nil, methodJoin: nil}, codes.PermissionDenied, "no rule", "refused"},
		"rule says no":      {both(deny(codes.Unauthenticated, secret, "")), codes.Unauthenticated, secret, "refused"},
		"with public words": {both(deny(codes.FailedPrecondition, secret, "too new")), codes.FailedPrecondition, secret, "too new"},
		"without a code":    {both(deny(codes.OK, secret, "")), codes.PermissionDenied, secret, "refused"},
		"wrapped": {both(func(context.Context, Peer) error {
			return fmt.Errorf("ask: %w", &Refusal{Code: codes.NotFound, Reason: secret})
		}), codes.NotFound, "ask: " + secret, "refused"},
		"plain error":  {both(func(context.Context, Peer) error { return errors.New(secret) }), codes.Internal, secret, "internal error"},
		"gRPC's error": {both(func(context.Context, Peer) error { return status.Error(codes.NotFound, secret) }), codes.Internal, secret, "internal error"},
		"panic":        {both(func(context.Context, Peer) error { panic(secret) }), codes.Internal, "panic: " + secret, "internal error"},
	}
	for name, c := range cases {
		for kind, call := range map[string]func(*testing.T, *site) error{
			"unary":  func(t *testing.T, s *site) error { return initOnce(t, s, nil) },
			"stream": func(t *testing.T, s *site) error { return joinOnce(t, s) },
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				called := make(chan struct{}, 1)
				s := open(t, ServerOptions{Authorize: c.rules}, AnyKey,
					joiner{join: func(joinStream) error { called <- struct{}{}; return nil }},
					initer{init: func(context.Context, *initv1.InitRequest) (*initv1.InitReply, error) {
						called <- struct{}{}
						return nil, nil
					}})
				err := call(t, s)
				r := s.wait(t, c.reason)
				wantStatus(t, err, c.code, r.ID)
				if want := c.public + " (id " + r.ID + ")"; status.Convert(err).Message() != want {
					t.Errorf("the peer learns %q, want %q", status.Convert(err).Message(), want)
				}
				if r.Code != c.code || r.Peer.Key == "" || r.Peer.Public == nil || r.Method == "" || s.len() != 1 {
					t.Errorf("audit: %+v", s.all)
				}
				if len(called) > 0 {
					t.Error("the handler was called")
				}
				if strings.Contains(c.reason, "panic") != (s.Panics() == 1) {
					t.Errorf("%d panics", s.Panics())
				}
			})
		}
	}
}

func both(rule func(context.Context, Peer) error) map[string]func(context.Context, Peer) error {
	return map[string]func(context.Context, Peer) error{methodInit: rule, methodJoin: rule}
}

func TestHandlerPanics(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := open(t, ServerOptions{Log: slog.New(slog.NewTextHandler(&log, nil))}, AnyKey,
		joiner{join: func(joinStream) error { panic("boom") }},
		initer{init: func(context.Context, *initv1.InitRequest) (*initv1.InitReply, error) {
			panic("bang")
		}})
	wantStatus(t, joinOnce(t, s), codes.Internal, s.wait(t, "panic: boom").ID)
	wantStatus(t, initOnce(t, s, nil), codes.Internal, s.wait(t, "panic: bang").ID)
	if s.Panics() != 2 || strings.Count(log.String(), "a call panicked") != 2 || !strings.Contains(log.String(), "call_test.go") {
		t.Errorf("%d panics; log: %s", s.Panics(), &log)
	}
	if err := initOnce(t, s, nil); status.Code(err) != codes.Internal {
		t.Errorf("the server does not go on: %v", err)
	}
}
