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

// network says how each endpoint behaves.
type network map[netip.AddrPort]func(ctx context.Context) (joinclient.Conn, error)

func (n network) dial(ctx context.Context, to netip.AddrPort) (joinclient.Conn, error) {
	return n[to](ctx)
}

func plays(s func() script) func(context.Context) (joinclient.Conn, error) {
	return func(context.Context) (joinclient.Conn, error) { return conn{s}, nil }
}

func refusesConnections(context.Context) (joinclient.Conn, error) {
	return nil, errors.New("connection refused")
}

func swallows(ctx context.Context) (joinclient.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestJoin(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	g, err := joinclient.Join(t.Context(), c.config(network{at(1): plays(c.honest)}.dial, at(1)))
	if err != nil {
		t.Fatal(err)
	}
	if g.Ticket.Plan.Node != "n1" || len(g.Secrets) != 1 || string(g.Secrets[0].Content) != "secret" || len(g.Certificates) != 1 || g.Endpoint != at(1) {
		t.Errorf("granted %+v", g)
	}
	if said := c.said(); len(said) != 2 || said[1] != (joinclient.Status{}) || said[0].Who != "a control plane at 192.0.2.1:9440" {
		t.Errorf("said %+v", said)
	}
}

// Two of three endpoints are dead, one way or the other: that costs no more than the two staggered starts. Kills the race.
func TestDeadEndpointsCostLittle(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		dead func(context.Context) (joinclient.Conn, error)
		most time.Duration
	}{"refused": {refusesConnections, 0}, "swallowed": {swallows, 500 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				n := network{at(1): tc.dead, at(2): tc.dead, at(3): plays(c.honest)}
				g, err := joinclient.Join(t.Context(), c.config(n.dial, at(1), at(2), at(3)))
				if err != nil || g.Endpoint != at(3) {
					t.Fatalf("%v at %s", err, g.Endpoint)
				}
				if took := time.Since(begun); took > tc.most {
					t.Errorf("it took %s", took)
				}
			})
		})
	}
}

// A service that is down for ten minutes is found again within its longest pause. Kills the pauses' growth, limit and reset.
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
			return plays(c.honest)(ctx)
		}}
		if _, err := joinclient.Join(t.Context(), c.config(n.dial, at(1))); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took > 10*time.Minute+30*time.Second {
			t.Errorf("found after %s", took)
		}
		if len(tries) < 20 || len(tries) > 60 || tries[1]-tries[0] > 150*time.Millisecond {
			t.Errorf("%d tries, the first at %v", len(tries), tries[:3])
		}
		for i := range tries[1:] {
			if gap := tries[i+1] - tries[i]; gap > 24*time.Second { // 30 s less a fifth, as chance has it here
				t.Errorf("a pause of %s", gap)
			}
		}
		if s := c.said(); !strings.Contains(s[len(s)-2].Detail, "connection refused") {
			t.Errorf("said %+v", s[len(s)-2])
		}
	})
}

// Who shows another CA is told loudly and left alone; the others are gone on with. Kills IsUntrusted and the long pause.
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
			t.Errorf("the wrong one was asked %d times in four minutes", wrong.Load())
		}
		if s := c.said(); !strings.Contains(s[len(s)-1].Detail, "192.0.2.1:9440: server not trusted: the key of its CA is another") {
			t.Errorf("said %+v", s[len(s)-1])
		}
	})
}

func TestWaits(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	synctest.Test(t, func(t *testing.T) {
		begun, asked := time.Now(), 0
		n := network{at(1): plays(func() script {
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
			t.Errorf("five waits took %s", took)
		}
		s := c.said()
		if len(s) != 3 || s[1].What != "approval of node n1" || s[1].Who != "slipway node approve n1" || !s[1].Since.Equal(begun) {
			t.Errorf("said %+v", s)
		}
	})
}

// A no is reported with its id and asked again ever more slowly, for ever, wherever in the talk it comes.
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
				n := network{at(1): plays(func() script {
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
					t.Errorf("asked again after %s", gap)
				}
				if gap := tries[len(tries)-1].Sub(tries[len(tries)-2]); gap < 45*time.Second || gap > 75*time.Second {
					t.Errorf("asked again after %s in the end", gap)
				}
				s := c.said()
				if last := s[len(s)-1]; len(s) != 2 || last.What != "leave to join the cluster" || !strings.Contains(last.Detail, "(id 12ab)") || !last.Since.Before(tries[1]) {
					t.Errorf("said %+v", s)
				}
			})
		})
	}
}

// A service that needs longer than is waited at first is waited for longer. Kills the growth of patience.
func TestSlowService(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	synctest.Test(t, func(t *testing.T) {
		n := network{at(1): plays(func() script {
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
			t.Fatalf("%v; said %+v", err, c.said())
		}
		if s := c.said(); !strings.Contains(s[len(s)-2].Detail, "no answer within") {
			t.Errorf("said %+v", s)
		}
	})
}

// A service that takes the proof and hangs is left for another one.
func TestHangsAfterTheProof(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		n := network{at(1): plays(func() script { s := c.honest(); s.proof = nil; return s }), at(2): plays(c.honest)}
		config := c.config(n.dial, at(1), at(2))
		config.Random = func(n int) int { return n - 1 } // the first stays first
		g, err := joinclient.Join(t.Context(), config)
		if err != nil || g.Endpoint != at(2) {
			t.Fatalf("%v at %s", err, g.Endpoint)
		}
		if took := time.Since(begun); took > 11*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}
