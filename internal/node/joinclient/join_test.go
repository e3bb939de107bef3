// SPDX-License-Identifier: Apache-2.0

package joinclient_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/attest/token"
	"github.com/slipway-project/slipway/internal/node/joinclient"
	"github.com/slipway-project/slipway/internal/rpc"
)

func at(i byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, i}), 9440)
}

// network determines how each endpoint behaves.
type network map[netip.AddrPort]func(ctx context.Context) (joinclient.Conn, error)

func (n network) dial(ctx context.Context, to netip.AddrPort) (joinclient.Conn, error) {
	return n[to](ctx)
}

func runs(s func() script) func(context.Context) (joinclient.Conn, error) {
	return func(context.Context) (joinclient.Conn, error) { return conn{s}, nil }
}

func refusesConnections(context.Context) (joinclient.Conn, error) {
	return nil, errors.New("connection refused")
}

func dropsPackets(ctx context.Context) (joinclient.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestJoin(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	g, err := joinclient.Join(t.Context(), c.config(network{at(1): runs(c.honest)}.dial, at(1)))
	if err != nil {
		t.Fatal(err)
	}
	if g.Ticket.Plan.Node != "n1" || len(g.Secrets) != 1 || string(g.Secrets[0].Content) != "secret" || len(g.Certificates) != 1 || g.Endpoint != at(1) {
		t.Errorf("got grant %+v", g)
	}
	if said := c.said(); len(said) != 2 || said[1] != (joinclient.Status{}) || said[0].Who != "a control plane at 192.0.2.1:9440" {
		t.Errorf("got statuses %+v", said)
	}
}

// Two of three endpoints refuse connections or drop packets. That costs no more than the two staggered starts.
func TestDeadEndpointsCostLittle(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		dead func(context.Context) (joinclient.Conn, error)
		most time.Duration
	}{"refused": {refusesConnections, 0}, "dropped": {dropsPackets, 500 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				n := network{at(1): tc.dead, at(2): tc.dead, at(3): runs(c.honest)}
				g, err := joinclient.Join(t.Context(), c.config(n.dial, at(1), at(2), at(3)))
				if err != nil || g.Endpoint != at(3) {
					t.Fatalf("got %v from %s", err, g.Endpoint)
				}
				if took := time.Since(begun); took > tc.most {
					t.Errorf("the join took %s, want at most %s", took, tc.most)
				}
			})
		})
	}
}

// A service that is down for ten minutes is found again within the longest pause. Covers the growth, limit and reset of pauses.
func TestRetriesForEver(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var tries []time.Duration
		n := network{at(1): func(ctx context.Context) (joinclient.Conn, error) {
			tries = append(tries, time.Since(begun))
			if time.Since(begun) < 10*time.Minute {
				return refusesConnections(ctx)
			}
			return runs(c.honest)(ctx)
		}}
		if _, err := joinclient.Join(t.Context(), c.config(n.dial, at(1))); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took > 10*time.Minute+30*time.Second {
			t.Errorf("admitted after %s, want at most 10m30s", took)
		}
		if len(tries) < 20 || len(tries) > 60 || tries[1]-tries[0] > 150*time.Millisecond {
			t.Errorf("got %d attempts, the first at %v, want 20 to 60", len(tries), tries[:3])
		}
		for i := range tries[1:] {
			if gap := tries[i+1] - tries[i]; gap > 24*time.Second { // 30 s less 20 %, because Random returns 0
				t.Errorf("got a pause of %s, want at most 24s", gap)
			}
		}
		if s := c.said(); !strings.Contains(s[len(s)-2].Detail, "connection refused") {
			t.Errorf("got statuses %+v", s[len(s)-2])
		}
	})
}

// A server with another CA is logged and not asked again for a long time, while the other endpoints are.
func TestWrongCA(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	synctest.Test(t, func(t *testing.T) {
		var wrong atomic.Int64
		n := network{
			at(1): func(context.Context) (joinclient.Conn, error) {
				wrong.Add(1)
				return nil, &rpc.Untrusted{Reason: "the key of its CA is another"}
			},
			at(2): refusesConnections,
		}
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
		defer cancel()
		if _, err := joinclient.Join(ctx, c.config(n.dial, at(1), at(2))); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if wrong.Load() != 1 {
			t.Errorf("the untrusted server was asked %d times in four minutes, want once", wrong.Load())
		}
		if s := c.said(); !strings.Contains(s[len(s)-1].Detail, "192.0.2.1:9440: server not trusted: the key of its CA is another") {
			t.Errorf("got statuses %+v", s[len(s)-1])
		}
	})
}

func TestWaits(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	synctest.Test(t, func(t *testing.T) {
		begun, asked := time.Now(), 0
		n := network{at(1): runs(func() script {
			s := c.honest()
			if asked++; asked <= 5 {
				s.proof = func(*stream) (*joinv1.JoinReply, error) {
					return &joinv1.JoinReply{Message: &joinv1.JoinReply_Wait{Wait: &joinv1.Wait{What: "approval of node n1", Who: "slipway node approve n1", SinceUnixNano: begun.UnixNano()}}}, nil
				}
			}
			return s
		})}
		if _, err := joinclient.Join(t.Context(), c.config(n.dial, at(1))); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took != 10*time.Second {
			t.Errorf("five waits took %s, want 10s", took)
		}
		s := c.said()
		if len(s) != 3 || s[1].What != "approval of node n1" || s[1].Who != "slipway node approve n1" || !s[1].Since.Equal(begun) {
			t.Errorf("got statuses %+v", s)
		}
	})
}

// A refusal is reported with its id, wherever in the exchange it comes. The machine keeps asking, with growing pauses.
func TestRefused(t *testing.T) {
	t.Parallel()
	no := func(*stream) (*joinv1.JoinReply, error) {
		return nil, status.Error(codes.PermissionDenied, "refused (id 12ab)")
	}
	for name, test := range map[string]struct {
		change func(s *script)
		token  string
		first  time.Duration
	}{
		"hello": {func(s *script) { s.hello = no }, "token", 5 * time.Second},
		"proof": {func(s *script) { s.proof = no }, "token", 5 * time.Second},
		"keys":  {func(s *script) { s.keys = no }, "token", 5 * time.Second},
		// Its record may be about to be written.
		"known": {func(s *script) { s.proof = no }, "", time.Second / 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			synctest.Test(t, func(t *testing.T) {
				var tries []time.Time
				n := network{at(1): runs(func() script {
					tries = append(tries, time.Now())
					s := c.honest()
					test.change(&s)
					return s
				})}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				config := c.config(n.dial, at(1))
				if test.token != "" {
					config.Prover = token.Prover{Text: test.token}
				}
				if _, err := joinclient.Join(ctx, config); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
				if gap := tries[1].Sub(tries[0]); gap < test.first*4/5 || gap > test.first*6/5 {
					t.Errorf("the first pause is %s, want %s ± 20 %%", gap, test.first)
				}
				if gap := tries[len(tries)-1].Sub(tries[len(tries)-2]); gap < 45*time.Second || gap > 75*time.Second {
					t.Errorf("the last pause is %s, want about a minute", gap)
				}
				s := c.said()
				if last := s[len(s)-1]; len(s) != 2 || last.What != "permission to join the cluster" || !strings.Contains(last.Detail, "(id 12ab)") || !last.Since.Before(tries[1]) {
					t.Errorf("got statuses %+v", s)
				}
			})
		})
	}
}

// The limit for an answer grows when a service needs longer.
func TestSlowService(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	synctest.Test(t, func(t *testing.T) {
		n := network{at(1): runs(func() script {
			s := c.honest()
			grant := s.proof
			s.proof = func(s *stream) (*joinv1.JoinReply, error) {
				select {
				case <-time.After(25 * time.Second):
					return grant(s)
				case <-s.ctx.Done():
					return nil, s.ctx.Err()
				}
			}
			return s
		})}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if _, err := joinclient.Join(ctx, c.config(n.dial, at(1))); err != nil {
			t.Fatalf("got %v with statuses %+v", err, c.said())
		}
		if s := c.said(); !strings.Contains(s[len(s)-2].Detail, "no answer within") {
			t.Errorf("got statuses %+v", s)
		}
	})
}

// If a service receives the proof and hangs, the machine tries another one.
func TestHangsAfterTheProof(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		n := network{at(1): runs(func() script { s := c.honest(); s.proof = nil; return s }), at(2): runs(c.honest)}
		config := c.config(n.dial, at(1), at(2))
		config.Random = func(n int) int { return n - 1 } // keeps the order of the endpoints
		g, err := joinclient.Join(t.Context(), config)
		if err != nil || g.Endpoint != at(2) {
			t.Fatalf("got %v from %s", err, g.Endpoint)
		}
		if took := time.Since(begun); took > 11*time.Second {
			t.Errorf("the join took %s, want at most 11s", took)
		}
	})
}
