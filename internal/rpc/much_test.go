// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
	joinv1 "github.com/slipway-project/slipway/api/join/v1"
)

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
	const age = 2 * time.Second // longer than a busy machine takes from the connection to the stream
	s := open(t, ServerOptions{Limits: Limits{Age: age, Call: 50 * time.Millisecond, Messages: 2}, Timeout: map[string]time.Duration{methodSync: NoTimeout}}, AnyKey,
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
	if strangers, known := s.count(); strangers != 0 || known != 1 {
		t.Errorf("%d strangers, %d known", strangers, known)
	}
}

func TestNoTimeoutOfARefusedPeerMakesItNoFriend(t *testing.T) {
	t.Parallel()
	s := open(t, ServerOptions{
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
	s.empty(t)
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

// A rule that cannot decide holds no call, not even one that may last for ever.
func TestRuleThatNeverDecides(t *testing.T) {
	t.Parallel()
	s := open(t, ServerOptions{
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
	wantStatus(t, err, codes.Unavailable, s.wait(t, "not decided within 100ms").ID)
}
