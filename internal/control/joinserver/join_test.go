// SPDX-License-Identifier: Apache-2.0

package joinserver_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/control/joinserver"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/node/joinclient"
	"github.com/slipway-project/slipway/internal/rpc"
)

func TestGoodJoins(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		machine func(*world) *machine
		node    string
		secrets int
	}{
		"worker by its key":        {func(w *world) *machine { return w.machine("127.0.0.20").expected("dev-worker-0") }, "dev-worker-0", 0},
		"control plane by its key": {func(w *world) *machine { return w.machine("127.0.0.11").expected("dev-main-1") }, "dev-main-1", 1},
		"new worker by a token":    {func(w *world) *machine { return w.machine("127.0.0.21").invited(registry.TokenSpec{Pool: "worker"}) }, "dev-worker-1", 0},
		"named worker by a token": {func(w *world) *machine {
			return w.machine("127.0.0.22").invited(registry.TokenSpec{Node: "dev-worker-0"})
		}, "dev-worker-0", 0},
		"control plane by a token": {func(w *world) *machine { return w.machine("127.0.0.12").invited(registry.TokenSpec{Pool: "main"}) }, "dev-main-2", 1},
		"known machine, odd token": {func(w *world) *machine {
			m := w.machine("127.0.0.23").expected("dev-worker-0")
			m.token = "x"
			return m
		}, "dev-worker-0", 0},
		"older version, right name": {func(w *world) *machine {
			m := w.machine("127.0.0.24").expected("dev-worker-0")
			m.version, m.node = "1.33.0", "dev-worker-0"
			return m
		}, "dev-worker-0", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, rpc.Limits{})
			m := tc.machine(w)
			g := m.join(t)
			if g.Ticket.Plan.Node != tc.node || len(g.Secrets) != tc.secrets || len(g.Certificates) != 2 || g.Endpoint != w.endpoint {
				t.Errorf("got node %q, %d secrets, %d certificates at %s", g.Ticket.Plan.Node, len(g.Secrets), len(g.Certificates), g.Endpoint)
			}
			for _, s := range g.Secrets {
				if string(s.Content) != canary {
					t.Errorf("secret %s: got %q", s.Path, s.Content)
				}
			}
			again := m.join(t)
			if !reflect.DeepEqual(g.Ticket, again.Ticket) || !reflect.DeepEqual(g.Secrets, again.Secrets) {
				t.Errorf("second join: got %+v, want %+v", again.Ticket, g.Ticket)
			}
			n, found, err := w.registry.ByKey(t.Context(), m.pin())
			if err != nil || !found || n.Name != tc.node || n.Address != m.address {
				t.Errorf("got record %+v, %v, %v", n, found, err)
			}
			var reasons []joinserver.Reason
			for _, e := range w.audit() {
				reasons = append(reasons, e.Reason)
			}
			want := []joinserver.Reason{joinserver.Granted, joinserver.Certified, joinserver.Certified}
			if diff := cmp.Diff(append(want, want...), reasons); diff != "" {
				t.Errorf("audit (-want +got):\n%s", diff)
			}
		})
	}
}

// breaker breaks streams: the first one at its at[0]-th message, the second one at its at[1]-th. With after, the message
// is sent and its answer is lost.
type breaker struct {
	joinclient.Dialer
	mu    sync.Mutex // guards the fields below
	at    []int
	after bool
}

var errBroken = errors.New("stream broken")

func (b *breaker) dial(ctx context.Context, to netip.AddrPort) (joinclient.Conn, error) {
	c, err := b.Dialer(ctx, to)
	if err != nil {
		return nil, err
	}
	return &breakingConn{Conn: c, by: b}, nil
}

type breakingConn struct {
	joinclient.Conn
	by *breaker
}

func (c *breakingConn) Join(ctx context.Context) (joinclient.JoinStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	s, err := c.Conn.Join(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	c.by.mu.Lock()
	defer c.by.mu.Unlock()
	left := -1
	if len(c.by.at) > 0 {
		left, c.by.at = c.by.at[0], c.by.at[1:]
	}
	return &breakingStream{JoinStream: s, left: left, after: c.by.after, cancel: cancel}, nil
}

type breakingStream struct {
	joinclient.JoinStream
	left   int
	after  bool
	cancel func()
}

func (s *breakingStream) act(do func() error) error {
	s.left--
	broken := s.left == -1
	if broken && !s.after {
		s.cancel()
		return errBroken
	}
	err := do()
	if broken {
		s.cancel()
		return errBroken
	}
	return err
}

func (s *breakingStream) Send(m *joinv1.JoinRequest) error {
	return s.act(func() error { return s.JoinStream.Send(m) })
}

func (s *breakingStream) Recv() (m *joinv1.JoinReply, err error) {
	err = s.act(func() error { m, err = s.JoinStream.Recv(); return err })
	return m, err
}

// A join that breaks at any message, before or after it, once or twice, has the same result: one token, one record, the
// same ticket.
func TestBreaks(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		for first := range 6 { // hello, challenge, proof, grant, keys, certificates
			for second := -1; second < 6; second += 3 {
				t.Run(fmt.Sprintf("act %d, then %d, after %v", first, second, after), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, loose())
					m := w.machine("127.0.0.20").invited(registry.TokenSpec{Pool: "worker"})
					config := m.config()
					b := &breaker{Dialer: joinclient.TLS(w.pin, m.key, func() netip.Addr { return m.address }, time.Now), at: []int{first, second}, after: after}
					config.Dial = b.dial
					g, err := joinclient.Join(t.Context(), config)
					if err != nil {
						t.Fatal(err)
					}
					if len(b.at) > 1 {
						t.Error("no stream broke")
					}
					if g.Ticket.Plan.Node != "dev-worker-1" {
						t.Errorf("got node %s, want dev-worker-1", g.Ticket.Plan.Node)
					}
					if again := m.join(t); !reflect.DeepEqual(g.Ticket, again.Ticket) {
						t.Errorf("second join: got %+v, want %+v", again.Ticket, g.Ticket)
					}
					nodes, err := w.registry.Nodes(t.Context())
					if err != nil || len(nodes) != 4 {
						t.Errorf("got %d records, %v, want 4", len(nodes), err)
					}
				})
			}
		}
	}
}
