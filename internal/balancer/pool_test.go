// SPDX-License-Identifier: Apache-2.0

package balancer

import (
	"log/slog"
	"net"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/slipway-project/slipway/internal/core/roster"
)

// closing is a connection that records whether it was closed.
type closing struct {
	net.Conn
	closed bool
}

func (c *closing) Close() error { c.closed = true; return nil }

// Invariants for any history of servers, rosters and connections: if a server is ready, no connection remains
// on a server that has failed; no connection is closed unless another server is ready; the servers are those
// of the newest roster; and the counts are consistent.
func TestPoolHistories(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := newPool(Config{Log: slog.New(slog.DiscardHandler), Rand: func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "chance") }}, defaultTiming(), "")
		type open struct {
			conn  *closing
			s     choice
			leave func()
			known bool // to be closed
		}
		var conns []*open
		newest := roster.Roster{}
		t.Repeat(map[string]func(*rapid.T){
			"roster": func(t *rapid.T) {
				r := roster.Roster{Generation: rapid.Uint64Range(1, 20).Draw(t, "generation")}
				for _, i := range rapid.SliceOfNDistinct(rapid.ByteRange(1, 5), 1, 4, rapid.ID[byte]).Draw(t, "api") {
					r.API = append(r.API, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, i}), 6443))
				}
				if newer := r.Generation > newest.Generation; newer != p.use(r, func(s *server) { s.stop = func() {} }) {
					t.Fatalf("generation %d after %d", r.Generation, newest.Generation)
				} else if newer {
					newest = r
				}
			},
			"health": func(t *rapid.T) {
				if len(p.servers) == 0 {
					t.Skip("no servers")
				}
				p.set(rapid.SampledFrom(p.servers).Draw(t, "server"), rapid.SampledFrom([]state{ready, unreachable}).Draw(t, "state"), "")
			},
			"connect": func(t *rapid.T) {
				list, release, _ := p.order()
				if len(list) == 0 {
					t.Skip("no servers")
				}
				c := &open{conn: &closing{}, s: list[0]}
				c.leave = p.join(c.s, &link{c.conn, c.conn})
				release()
				conns = append(conns, c)
			},
			"leave": func(t *rapid.T) {
				if len(conns) == 0 {
					t.Skip("no connections")
				}
				i := rapid.IntRange(0, len(conns)-1).Draw(t, "which")
				conns[i].leave()
				conns = append(conns[:i], conns[i+1:]...)
			},
			"": func(t *rapid.T) {
				better, total := false, 0
				for _, s := range p.servers {
					better = better || s.state == ready
					if total += len(s.conns); s.meant != 0 {
						t.Fatalf("%s: got %d pending connections, want 0", s.addr, s.meant)
					}
				}
				for _, s := range p.gone {
					total += len(s.conns)
				}
				if total > len(conns) || len(p.servers) != len(newest.API) {
					t.Fatalf("got %d connections counted, %d open; %d servers, %d in the roster", total, len(conns), len(p.servers), len(newest.API))
				}
				for _, c := range conns {
					if fell := c.s.server.falls != c.s.falls; fell && better && !c.conn.closed && c.s.state != ready {
						t.Fatalf("connection open on %s, which is %s", c.s.addr, c.s.state)
					} else if c.conn.closed && !c.known && (!better || (!fell && c.s.state != unreachable)) {
						t.Fatalf("connection closed on %s, which is %s; another ready: %v", c.s.addr, c.s.state, better)
					}
					c.known = c.conn.closed
				}
			},
		})
	})
}
