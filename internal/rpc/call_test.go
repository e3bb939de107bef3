// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
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
			var m map[string]int
			m["x"]++
			return nil, nil
		}})
	wantStatus(t, joinOnce(t, s), codes.Internal, s.wait(t, "panic: boom").ID)
	wantStatus(t, initOnce(t, s, nil), codes.Internal, s.wait(t, "panic: assignment to entry in nil map").ID)
	if s.Panics() != 2 || strings.Count(log.String(), "a call panicked") != 2 || !strings.Contains(log.String(), "call_test.go") {
		t.Errorf("%d panics; log: %s", s.Panics(), &log)
	}
	if err := initOnce(t, s, nil); status.Code(err) != codes.Internal {
		t.Errorf("the server does not go on: %v", err)
	}
}

// endless reads until its peer is refused.
func endless(stream joinStream) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}

func hello(n int) *joinv1.JoinRequest {
	return &joinv1.JoinRequest{Message: &joinv1.JoinRequest_Hello{Hello: &joinv1.Hello{SealKey: make([]byte, n)}}}
}

func TestTooMuch(t *testing.T) {
	t.Parallel()
	forever := func(ctx context.Context, _ *initv1.InitRequest) (*initv1.InitReply, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	cases := map[string]struct {
		limits Limits
		call   func(*testing.T, *site) error
		code   codes.Code
		reason string
	}{
		"large message, stream": {Limits{}, func(t *testing.T, s *site) error { return joinOnce(t, s, hello(1<<20)) }, codes.ResourceExhausted, "larger than max"},
		"large message, unary":  {Limits{}, func(t *testing.T, s *site) error { return initOnce(t, s, make([]byte, 1<<20)) }, codes.ResourceExhausted, "larger than max"},
		"endless messages": {Limits{}, func(t *testing.T, s *site) error {
			return joinOnce(t, s, repeated(hello(10), 100)...)
		}, codes.ResourceExhausted, "more than 64 messages"},
		"endless stream":  {Limits{Call: 100 * time.Millisecond}, func(t *testing.T, s *site) error { return joinOnce(t, s, hello(1)) }, codes.DeadlineExceeded, "not finished within 100ms"},
		"endless handler": {Limits{Call: 100 * time.Millisecond}, func(t *testing.T, s *site) error { return initOnce(t, s, nil) }, codes.DeadlineExceeded, "not finished within 100ms"},
		"too many calls": {Limits{Calls: Rate{0.001, 1}}, func(t *testing.T, s *site) error {
			_, err := initv1.NewInitClient(s.dial(t)).Facts(t.Context(), &initv1.FactsRequest{})
			return errors.Join(err, joinOnce(t, s))
		}, codes.ResourceExhausted, "calls a second"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, ServerOptions{Limits: c.limits}, AnyKey, joiner{join: endless}, initer{init: forever})
			err := c.call(t, s)
			r := s.wait(t, c.reason)
			id := r.ID
			if c.reason == "larger than max" { // gRPC has answered in its own words
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

// A message of the greatest size passes.
func TestEnough(t *testing.T) {
	t.Parallel()
	s := open(t, ServerOptions{}, AnyKey, joiner{}, initer{init: func(_ context.Context, r *initv1.InitRequest) (*initv1.InitReply, error) {
		return &initv1.InitReply{Phase: fmt.Sprint(len(r.GetTicket()))}, nil
	}})
	if err := initOnce(t, s, make([]byte, 1<<20-100)); err != nil {
		t.Error(err)
	}
	if s.len() > 0 {
		t.Errorf("audit: %+v", s.all)
	}
}

// What a Sync stream does may take as long as it likes, on a connection that no longer counts as a stranger's.
func TestNoTimeout(t *testing.T) {
	t.Parallel()
	s := open(t, ServerOptions{Limits: Limits{Age: 100 * time.Millisecond, Call: 50 * time.Millisecond, Messages: 2}, Timeout: map[string]time.Duration{methodSync: NoTimeout}}, AnyKey,
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
	until := time.Now().Add(400 * time.Millisecond)
	for time.Now().Before(until) {
		if err := stream.Send(&joinv1.SyncRequest{}); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	if strangers, known := s.count(); strangers != 0 || known != 1 {
		t.Errorf("%d strangers, %d known", strangers, known)
	}
}

func TestNoTimeoutOfARefusedPeerMakesItNoFriend(t *testing.T) {
	t.Parallel()
	s := open(t, ServerOptions{
		Limits: Limits{Age: 100 * time.Millisecond}, Timeout: map[string]time.Duration{methodSync: NoTimeout},
		Authorize: map[string]func(context.Context, Peer) error{methodSync: deny(codes.PermissionDenied, "no such node", "")},
	}, AnyKey, joiner{}, initer{})
	stream, err := joinv1.NewJoinClient(s.dial(t)).Sync(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	wantStatus(t, err, codes.PermissionDenied, s.wait(t, "no such node").ID)
	s.wait(t, "older than 100ms")
	s.empty(t)
}

// Frame by frame: what a gRPC client would never send.
func TestHostileFrames(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		do     func(*testing.T, *wire) answer
		status string // gRPC's code
		http   string
		reset  http2.ErrCode
		reason string // "": gRPC itself refuses, before anybody can see it
	}{
		"name without slash":  {calls("Join"), "12", "200", 0, "no method's name"},
		"name with one slash": {calls("/Join"), "12", "200", 0, "no method's name"},
		"empty name":          {calls(""), "12", "200", 0, "no method's name"},
		"unknown service":     {calls("/x.Y/Z"), "7", "200", 0, "no rule"},
		"unknown method":      {calls("/slipway.join.v1.Join/Leave"), "7", "200", 0, "no rule"},
		"trailing slash":      {calls(methodJoin + "/"), "7", "200", 0, "no rule"},
		"other case":          {calls("/slipway.join.v1.join/join"), "7", "200", 0, "no rule"},
		"escaped":             {calls("/slipway.join.v1.Join%2fJoin/x"), "7", "200", 0, "no rule"},
		"rule, not served":    {calls("/ruled.But/Missing"), "12", "200", 0, "not served"},
		"long name":           {calls("/x/" + strings.Repeat("y", 9000)), "7", "200", 0, "no rule"},
		"reflection":          {calls("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"), "7", "200", 0, "no rule"},
		"health":              {calls("/grpc.health.v1.Health/Check"), "7", "200", 0, "no rule"},
		"channelz":            {calls("/grpc.channelz.v1.Channelz/GetServers"), "7", "200", 0, "no rule"},
		"wrong content type":  {calls(methodJoin, hpack.HeaderField{Name: "content-type", Value: "application/json"}), "3", "415", 0, ""},
		"GET":                 {calls(methodJoin, hpack.HeaderField{Name: ":method", Value: "GET"}), "13", "405", 0, ""},
		"large headers":       {calls(methodJoin, repeated(hpack.HeaderField{Name: "x", Value: strings.Repeat("y", 1000)}, 17)...), "", "", http2.ErrCodeFrameSize, ""},
		"compressed":          {calls(methodFacts, hpack.HeaderField{Name: "grpc-encoding", Value: "gzip"}), "12", "200", 0, ""},
		"no message, unary":   {calls(methodFacts), "13", "200", 0, "receive a message"},
		"two messages, unary": {func(t *testing.T, w *wire) answer {
			id := begin(t, w, methodFacts)
			write(t, w, id, true, append(message(0, nil), message(0, nil)...))
			return w.answer(t, id)
		}, "13", "200", 0, "receive a message"},
		"length of 4 GiB": {func(t *testing.T, w *wire) answer {
			id := begin(t, w, methodFacts)
			write(t, w, id, false, message(0xffffffff, nil))
			return w.answer(t, id)
		}, "8", "200", 0, "larger than max"},
		"no protobuf": {func(t *testing.T, w *wire) answer {
			id := begin(t, w, methodInit)
			write(t, w, id, true, message(3, []byte("\xff\xff\xff")))
			return w.answer(t, id)
		}, "13", "200", 0, "receive a message"},
		"body that never comes": {func(t *testing.T, w *wire) answer {
			id := begin(t, w, methodFacts)
			write(t, w, id, false, message(1000, []byte("x")))
			return w.answer(t, id)
		}, "4", "200", 0, "not finished within"},
		"refused before its body": {func(t *testing.T, w *wire) answer { return w.answer(t, begin(t, w, methodWatch)) }, "16", "200", 0, "wrong secret"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, ServerOptions{
				Timeout: map[string]time.Duration{methodFacts: 200 * time.Millisecond},
				Authorize: map[string]func(context.Context, Peer) error{
					methodJoin: anybody, methodFacts: anybody, methodInit: anybody, "/ruled.But/Missing": anybody,
					methodWatch: deny(codes.Unauthenticated, "wrong secret", ""),
				},
			}, AnyKey, joiner{join: endless}, initer{init: func(context.Context, *initv1.InitRequest) (*initv1.InitReply, error) { return nil, nil }})
			a := c.do(t, speak(t, s))
			if a.fields["grpc-status"] != c.status || a.fields[":status"] != c.http || a.reset != c.reset {
				t.Errorf("answer %v, want gRPC %s, HTTP %s, reset %v", a, c.status, c.http, c.reset)
			}
			if c.reason == "" {
				return
			}
			r := s.wait(t, c.reason)
			// gRPC answers in its own words where it cannot read a name or a message.
			own := c.reason == "no method's name" || c.reason == "receive a message" || c.reason == "larger than max"
			if !own && !strings.Contains(a.fields["grpc-message"], r.ID) {
				t.Errorf("the peer learns %q, without the id %s", a.fields["grpc-message"], r.ID)
			}
			if len(r.Method) > 200 {
				t.Errorf("audit keeps %d bytes of a name", len(r.Method))
			}
		})
	}
}

func calls(path string, fields ...hpack.HeaderField) func(*testing.T, *wire) answer {
	return func(t *testing.T, w *wire) answer {
		id, err := w.call(path, true, fields...)
		if err != nil {
			t.Fatal(err)
		}
		return w.answer(t, id)
	}
}

func begin(t *testing.T, w *wire, method string) uint32 {
	t.Helper()
	id, err := w.call(method, false)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func write(t *testing.T, w *wire, id uint32, end bool, b []byte) {
	t.Helper()
	if err := w.WriteData(id, end, b); err != nil {
		t.Fatal(err)
	}
}

// Calls that are taken back at once neither pile up nor keep a good one out.
func TestRapidReset(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	running, most := 0, 0
	s := open(t, ServerOptions{Limits: Limits{Calls: Rate{1e6, 1e6}}}, AnyKey, joiner{join: func(stream joinStream) error {
		mu.Lock()
		running++
		most = max(most, running)
		mu.Unlock()
		<-stream.Context().Done()
		mu.Lock()
		running--
		mu.Unlock()
		return nil
	}}, initer{})
	w := speak(t, s)
	go func() {
		for {
			if _, err := w.ReadFrame(); err != nil {
				return
			}
		}
	}()
	for range 5000 {
		id := begin(t, w, methodJoin)
		if err := w.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := initv1.NewInitClient(s.dial(t)).Facts(t.Context(), &initv1.FactsRequest{}); err != nil {
		t.Error(err)
	}
	w.conn.Close()
	mu.Lock()
	defer mu.Unlock()
	if most > 16 {
		t.Errorf("%d handlers ran at the same time on one connection", most)
	}
}

// More calls than one connection may have are refused, and their refusal costs no handler.
func TestTooManyStreams(t *testing.T) {
	t.Parallel()
	s := open(t, ServerOptions{}, AnyKey, joiner{join: endless}, initer{})
	w := speak(t, s)
	var last uint32
	for range 17 {
		last = begin(t, w, methodJoin)
	}
	if a := w.answer(t, last); a.reset != http2.ErrCodeRefusedStream {
		t.Errorf("the 17th call: %+v", a)
	}
}

// A call that was refused leaves no timer behind, however long its peer would have waited.
func TestRefusedCallsLeaveNothing(t *testing.T) {
	t.Parallel()
	s := open(t, ServerOptions{Limits: Limits{Calls: Rate{0.001, 1}}}, AnyKey, joiner{}, initer{})
	w := speak(t, s)
	for _, path := range []string{"x", "/x/y", methodFacts} {
		id, err := w.call(path, true, hpack.HeaderField{Name: "grpc-timeout", Value: "99999999H"})
		if err != nil {
			t.Fatal(err)
		}
		if a := w.answer(t, id); a.fields["grpc-status"] == "0" {
			t.Errorf("%q was answered: %v", path, a)
		}
	}
	s.wait(t, "no method's name")
	s.wait(t, "calls a second")
}

// A peer that reads nothing does not hold the handler beyond its time.
func TestPeerThatReadsNothing(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	s := open(t, ServerOptions{Limits: Limits{Call: 200 * time.Millisecond}}, AnyKey, joiner{join: func(stream joinStream) error {
		reply := &joinv1.JoinReply{Message: &joinv1.JoinReply_Grant{Grant: &joinv1.Grant{Ticket: make([]byte, 1<<20)}}}
		for {
			if err := stream.Send(reply); err != nil {
				ended <- err
				return err
			}
		}
	}}, initer{})
	w := speak(t, s)
	begin(t, w, methodJoin)
	select {
	case err := <-ended:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("send: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the handler is held")
	}
	s.wait(t, "not finished within 200ms")
}
