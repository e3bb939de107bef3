// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
	joinv1 "github.com/slipway-project/slipway/api/join/v1"
)

func TestPeerAndExporterAgree(t *testing.T) {
	t.Parallel()
	s := startServer(t, ServerOptions{}, AnyKey, joiner{join: func(stream grpc.BidiStreamingServer[joinv1.JoinRequest, joinv1.JoinReply]) error {
		exported, err := Exporter(stream.Context())
		if err != nil {
			return err
		}
		return stream.Send(&joinv1.JoinReply{Message: &joinv1.JoinReply_Challenge{Challenge: &joinv1.Challenge{Nonce: exported}}})
	}}, initer{})
	seen := map[string]bool{}
	for range 3 {
		key, cert := identity(t)
		conn := dialWith(t, s.addr, ClientOptions{Pin: s.pin, Certificate: cert})
		stream, err := joinv1.NewJoinClient(conn).Join(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ours, err := Exporter(stream.Context())
		if err != nil {
			t.Fatal(err)
		}
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if theirs := r.GetChallenge().GetNonce(); string(ours) != string(theirs) || len(ours) != 32 {
			t.Errorf("exporters differ: client %x, server %x", ours, theirs)
		}
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("end of the stream: got %v, want EOF", err)
		}
		facts, err := initv1.NewInitClient(conn).Facts(t.Context(), &initv1.FactsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if facts.GetSlipway() != string(pinOf(t, key)) || !strings.HasPrefix(string(facts.GetFacts()), "127.0.0.1:") || facts.GetLock() != string(hexed(ours)) {
			t.Errorf("the server got %v", facts)
		}
		if seen[string(ours)] {
			t.Error("two connections have the same exporter")
		}
		seen[string(ours)] = true
	}
}

type (
	joinStream = grpc.BidiStreamingServer[joinv1.JoinRequest, joinv1.JoinReply]
	syncStream = grpc.BidiStreamingServer[joinv1.SyncRequest, joinv1.SyncReply]
)

func deny(code codes.Code, reason, public string) func(context.Context, Peer) error {
	return func(context.Context, Peer) error { return &Refusal{Code: code, Reason: reason, Public: public} }
}

// joinOnce opens a Join stream and returns how it ends.
func joinOnce(t *testing.T, s *testServer, sends ...*joinv1.JoinRequest) error {
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

func initOnce(t *testing.T, s *testServer, ticket []byte) error {
	t.Helper()
	_, err := initv1.NewInitClient(s.dial(t)).Init(t.Context(), &initv1.InitRequest{Id: "r1", Ticket: ticket})
	return err
}

func TestRules(t *testing.T) {
	t.Parallel()
	secret := "canary: the record of node-7"
	cases := map[string]struct {
		rules  map[string]func(context.Context, Peer) error
		code   codes.Code
		reason string
		public string
	}{
		"no rules":               {map[string]func(context.Context, Peer) error{}, codes.PermissionDenied, "the method has no authorization rule", "refused"},
		"rule of another method": {map[string]func(context.Context, Peer) error{methodWatch: allowAll}, codes.PermissionDenied, "no authorization rule", "refused"},
		"nil rule":               {map[string]func(context.Context, Peer) error{methodInit: nil, methodJoin: nil}, codes.PermissionDenied, "no authorization rule", "refused"},
		"rule refuses":           {both(deny(codes.Unauthenticated, secret, "")), codes.Unauthenticated, secret, "refused"},
		"public reason":          {both(deny(codes.FailedPrecondition, secret, "too new")), codes.FailedPrecondition, secret, "too new"},
		"no code":                {both(deny(codes.OK, secret, "")), codes.PermissionDenied, secret, "refused"},
		"wrapped": {both(func(context.Context, Peer) error {
			return fmt.Errorf("ask: %w", &Refusal{Code: codes.NotFound, Reason: secret})
		}), codes.NotFound, "ask: " + secret, "refused"},
		"plain error":  {both(func(context.Context, Peer) error { return errors.New(secret) }), codes.Internal, secret, "internal error"},
		"gRPC's error": {both(func(context.Context, Peer) error { return status.Error(codes.NotFound, secret) }), codes.Internal, secret, "internal error"},
		"panic":        {both(func(context.Context, Peer) error { panic(secret) }), codes.Internal, "panic: " + secret, "internal error"},
	}
	for name, c := range cases {
		for kind, call := range map[string]func(*testing.T, *testServer) error{
			"unary":  func(t *testing.T, s *testServer) error { return initOnce(t, s, nil) },
			"stream": func(t *testing.T, s *testServer) error { return joinOnce(t, s) },
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				called := make(chan struct{}, 1)
				s := startServer(t, ServerOptions{Authorize: c.rules}, AnyKey,
					joiner{join: func(joinStream) error { called <- struct{}{}; return nil }},
					initer{init: func(context.Context, *initv1.InitRequest) (*initv1.InitReply, error) {
						called <- struct{}{}
						return nil, nil
					}})
				err := call(t, s)
				r := s.wait(t, c.reason)
				wantStatus(t, err, c.code, r.ID)
				if want := c.public + " (id " + r.ID + ")"; status.Convert(err).Message() != want {
					t.Errorf("client got %q, want %q", status.Convert(err).Message(), want)
				}
				if r.Code != c.code || r.Peer.Key == "" || r.Peer.Public == nil || r.Method == "" || s.len() != 1 {
					t.Errorf("audit: %+v", s.all)
				}
				if len(called) > 0 {
					t.Error("the handler was called for a refused call")
				}
				if strings.Contains(c.reason, "panic") != (s.Panics() == 1) {
					t.Errorf("got %d panics", s.Panics())
				}
			})
		}
	}
}

// The client recognizes a refusal because of the server's clock by its details, not by its text.
func TestRefusalBecauseOfClock(t *testing.T) {
	t.Parallel()
	for _, wrong := range []bool{true, false} {
		refusal := &Refusal{Code: codes.Unavailable, Reason: "cannot sign", Public: "not now", WrongClock: wrong}
		s := startServer(t, ServerOptions{Authorize: both(func(context.Context, Peer) error { return refusal })}, AnyKey, joiner{}, initer{})
		for kind, err := range map[string]error{"unary": initOnce(t, s, nil), "stream": joinOnce(t, s)} {
			if status.Code(err) != codes.Unavailable || IsWrongClock(err) != wrong || IsUntrusted(err) {
				t.Errorf("%s: got %v (IsWrongClock: %t, IsUntrusted: %t), want IsWrongClock=%t", kind, err, IsWrongClock(err), IsUntrusted(err), wrong)
			}
		}
	}
	if IsWrongClock(nil) || IsWrongClock(errors.New("clock")) {
		t.Error("IsWrongClock is true for an unrelated error")
	}
}

func both(rule func(context.Context, Peer) error) map[string]func(context.Context, Peer) error {
	return map[string]func(context.Context, Peer) error{methodInit: rule, methodJoin: rule}
}

func TestHandlerPanics(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := startServer(t, ServerOptions{Log: slog.New(slog.NewTextHandler(&log, nil))}, AnyKey,
		joiner{join: func(joinStream) error { panic("boom") }},
		initer{init: func(context.Context, *initv1.InitRequest) (*initv1.InitReply, error) {
			panic("bang")
		}})
	wantStatus(t, joinOnce(t, s), codes.Internal, s.wait(t, "panic: boom").ID)
	wantStatus(t, initOnce(t, s, nil), codes.Internal, s.wait(t, "panic: bang").ID)
	if s.Panics() != 2 || strings.Count(log.String(), "call panicked") != 2 || !strings.Contains(log.String(), "call_test.go") {
		t.Errorf("got %d panics, want 2; log: %s", s.Panics(), &log)
	}
	if err := initOnce(t, s, nil); status.Code(err) != codes.Internal {
		t.Errorf("the call after a panic: got %v, want Internal", err)
	}
}

// readAll reads until the call is refused.
func readAll(stream joinStream) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}

func hello(n int) *joinv1.JoinRequest {
	return &joinv1.JoinRequest{Message: &joinv1.JoinRequest_Hello{Hello: &joinv1.Hello{SealKey: make([]byte, n)}}}
}

func TestCallLimits(t *testing.T) {
	t.Parallel()
	block := func(ctx context.Context, _ *initv1.InitRequest) (*initv1.InitReply, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	cases := map[string]struct {
		limits Limits
		call   func(*testing.T, *testServer) error
		code   codes.Code
		reason string
	}{
		"large message, stream": {Limits{}, func(t *testing.T, s *testServer) error { return joinOnce(t, s, hello(1<<20)) }, codes.ResourceExhausted, "larger than max"},
		"large message, unary":  {Limits{}, func(t *testing.T, s *testServer) error { return initOnce(t, s, make([]byte, 1<<20)) }, codes.ResourceExhausted, "larger than max"},
		"endless messages": {Limits{}, func(t *testing.T, s *testServer) error {
			return joinOnce(t, s, repeated(hello(10), 100)...)
		}, codes.ResourceExhausted, "more than 64 messages"},
		"endless stream":  {Limits{Call: 100 * time.Millisecond}, func(t *testing.T, s *testServer) error { return joinOnce(t, s, hello(1)) }, codes.DeadlineExceeded, "not finished within 100ms"},
		"endless handler": {Limits{Call: 100 * time.Millisecond}, func(t *testing.T, s *testServer) error { return initOnce(t, s, nil) }, codes.DeadlineExceeded, "not finished within 100ms"},
		"too many calls": {Limits{Calls: Rate{0.001, 1}}, func(t *testing.T, s *testServer) error {
			_, err := initv1.NewInitClient(s.dial(t)).Facts(t.Context(), &initv1.FactsRequest{})
			return errors.Join(err, joinOnce(t, s))
		}, codes.ResourceExhausted, "calls per second"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, ServerOptions{Limits: c.limits}, AnyKey, joiner{join: readAll}, initer{init: block})
			err := c.call(t, s)
			r := s.wait(t, c.reason)
			id := r.ID
			if c.reason == "larger than max" { // gRPC itself has answered
				id = ""
			}
			wantStatus(t, err, c.code, id)
			if r.Code != c.code || r.Peer.Key == "" {
				t.Errorf("audit: %+v", r)
			}
		})
	}
}

func repeated[T any](m T, n int) (all []T) {
	for range n {
		all = append(all, m)
	}
	return all
}

// A message of the maximum size is accepted.
func TestLargestMessage(t *testing.T) {
	t.Parallel()
	s := startServer(t, ServerOptions{}, AnyKey, joiner{}, initer{init: func(_ context.Context, r *initv1.InitRequest) (*initv1.InitReply, error) {
		return &initv1.InitReply{Phase: fmt.Sprint(len(r.GetTicket()))}, nil
	}})
	if err := initOnce(t, s, make([]byte, 1<<20-100)); err != nil {
		t.Error(err)
	}
	if s.len() > 0 {
		t.Errorf("audit: %+v", s.all)
	}
}

// A call without timeout is not limited, and its connection counts as that of a known peer.
func TestNoTimeout(t *testing.T) {
	t.Parallel()
	const age = 2 * time.Second // longer than a busy machine needs to open the stream
	s := startServer(t, ServerOptions{Limits: Limits{Age: age, Call: 50 * time.Millisecond, Messages: 2}, Timeout: map[string]time.Duration{methodSync: NoTimeout}}, AnyKey,
		joiner{sync: func(stream syncStream) error {
			for {
				if _, err := stream.Recv(); err != nil {
					return err
				}
				if err := stream.Send(&joinv1.SyncReply{}); err != nil {
					return err
				}
			}
		}}, initer{})
	stream, err := joinv1.NewJoinClient(s.dial(t)).Sync(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	for until := time.Now().Add(age + 300*time.Millisecond); time.Now().Before(until); <-pace.C {
		if err := stream.Send(&joinv1.SyncRequest{}); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	if unknown, known := s.count(); unknown != 0 || known != 1 {
		t.Errorf("got %d connections of unknown and %d of known peers, want 0 and 1", unknown, known)
	}
}

func TestRefusedPeerStaysUnknown(t *testing.T) {
	t.Parallel()
	s := startServer(t, ServerOptions{
		Limits: Limits{Age: 2 * time.Second}, Timeout: map[string]time.Duration{methodSync: NoTimeout},
		Authorize: map[string]func(context.Context, Peer) error{methodSync: deny(codes.PermissionDenied, "no such node", "")},
	}, AnyKey, joiner{}, initer{})
	stream, err := joinv1.NewJoinClient(s.dial(t)).Sync(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	wantStatus(t, err, codes.PermissionDenied, s.wait(t, "no such node").ID)
	s.wait(t, "older than 2s")
	s.waitNoConnections(t)
}

// A peer that does not read cannot block the handler beyond the timeout of the call.
func TestPeerDoesNotRead(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	s := startServer(t, ServerOptions{Limits: Limits{Call: 200 * time.Millisecond}}, AnyKey, joiner{join: func(stream joinStream) error {
		reply := &joinv1.JoinReply{Message: &joinv1.JoinReply_Grant{Grant: &joinv1.Grant{Ticket: make([]byte, 1<<20)}}}
		for {
			if err := stream.Send(reply); err != nil {
				ended <- err
				return err
			}
		}
	}}, initer{})
	w := dialFrames(t, s)
	begin(t, w, methodJoin)
	select {
	case err := <-ended:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("send: got %v, want DeadlineExceeded", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the handler is still blocked")
	}
	s.wait(t, "not finished within 200ms")
}

// A rule that does not return is limited, even for a method without timeout.
func TestRuleTimesOut(t *testing.T) {
	t.Parallel()
	s := startServer(t, ServerOptions{
		Limits: Limits{Call: 100 * time.Millisecond}, Timeout: map[string]time.Duration{methodSync: NoTimeout},
		Authorize: map[string]func(context.Context, Peer) error{methodSync: func(ctx context.Context, _ Peer) error {
			<-ctx.Done()
			return ctx.Err()
		}},
	}, AnyKey, joiner{}, initer{})
	stream, err := joinv1.NewJoinClient(s.dial(t)).Sync(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	wantStatus(t, err, codes.Unavailable, s.wait(t, "did not decide within 100ms").ID)
}
