// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
)

// from makes a client come from another address of the loopback network.
func from(source string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}).DialContext(ctx, "tcp", addr)
	}
}

// Not parallel: it counts the goroutines of the whole process.
func TestCrowdFromOneSource(t *testing.T) {
	s := open(t, ServerOptions{}, AnyKey, joiner{}, initer{})
	before := runtime.NumGoroutine()
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			for range 100 {
				c, err := from("127.0.0.66")(t.Context(), s.addr)
				if err != nil {
					continue // the kernel's queue is full: the server is not bothered
				}
				t.Cleanup(func() { c.Close() })
			}
		})
	}
	group.Wait()
	s.wait(t, "the source has 32 connections")
	if strangers, _ := s.count(); strangers > 32 {
		t.Errorf("one source has %d connections", strangers)
	}
	if more := runtime.NumGoroutine() - before; more > 32*4+100 {
		t.Errorf("2000 connections made %d goroutines", more)
	}
	_, cert := identity(t)
	conn := dialWith(t, s.addr, ClientOptions{Pin: s.pin, Certificate: cert, Dialer: from("127.0.0.77")})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := initv1.NewInitClient(conn).Facts(ctx, &initv1.FactsRequest{}); err != nil {
		t.Errorf("another source does not get in: %v", err)
	}
}

func address(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

func TestGateKeepsSlotsForNewSources(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	g := newGate(Limits{ConnectionsAll: Rate{1e6, 1e6}}.filled())
	in := 0
	for source := range 20 {
		for range 32 {
			if g.admit(address(source), now) == nil {
				in++
			}
		}
	}
	// Twelve sources fill three quarters; each of the others gets its first one.
	if want := 384 + 8; in != want || g.strangers != want {
		t.Errorf("%d connections, want %d", in, want)
	}
	for source := 20; source < 2000; source++ {
		_ = g.admit(address(source), now)
	}
	if g.strangers != 512 {
		t.Errorf("%d connections, want all 512", g.strangers)
	}
	g.release(address(0), false)
	if err := g.admit(address(0), now); err == nil {
		t.Error("a source with connections takes a slot that is kept")
	}
	if err := g.admit(address(5000), now); err != nil {
		t.Errorf("a new source gets no free slot: %v", err)
	}
}

func TestGateRates(t *testing.T) {
	t.Parallel()
	l := Limits{Connections: Rate{10, 20}, ConnectionsAll: Rate{100, 40}, PerSource: 1000, Total: 100000}.filled()
	now := time.Unix(0, 0)
	g := newGate(l)
	rush := func(source, n int) (in int) {
		for range n {
			if g.admit(address(source), now) == nil {
				in++
			}
		}
		return in
	}
	if in := rush(1, 100); in != 20 {
		t.Errorf("first source: %d, want its burst of 20", in)
	}
	if in := rush(2, 100); in != 10 {
		t.Errorf("second source: %d, want what is not kept for newcomers", in)
	}
	for source := 3; source < 13; source++ {
		if rush(source, 1) != 1 {
			t.Errorf("newcomer %d does not get in", source)
		}
	}
	if rush(100, 1) != 0 {
		t.Error("more get in than the rate of all allows")
	}
	now = now.Add(time.Second)
	if in := rush(1, 100); in != 10 {
		t.Errorf("first source a second later: %d, want 10", in)
	}
}

func TestGateForgets(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	g := newGate(Limits{}.filled())
	for n := range 100_000 {
		if n%200 == 0 {
			now = now.Add(time.Second)
		}
		if err := g.admit(address(n), now); err != nil {
			t.Fatalf("source %d: %v", n, err)
		}
		g.release(address(n), false)
	}
	if len(g.sources) > maxSources {
		t.Errorf("%d sources are remembered", len(g.sources))
	}
}

// So many sources at once that nobody can be forgotten: refusals fill half of the table, those who are let in the rest.
func TestGateIsBounded(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	g := newGate(Limits{ConnectionsAll: Rate{1e9, 1e9}, ReportsAll: Rate{1e9, 1e9}}.filled())
	for n := range 2 * maxSources {
		g.tell(address(n), now)
	}
	if len(g.sources) != maxSources/2 {
		t.Errorf("refusals alone make %d rows", len(g.sources))
	}
	in := 0
	for n := range 2 * maxSources {
		if g.admit(address(1_000_000+n), now) == nil {
			g.release(address(1_000_000+n), false)
			in++
		}
	}
	if in != maxSources/2 || len(g.sources) != maxSources {
		t.Errorf("%d were let in, %d rows", in, len(g.sources))
	}
	if err := g.admit(address(3_000_000), now.Add(2*time.Second)); err != nil {
		t.Errorf("later nobody is forgotten: %v", err)
	}
}

func TestSources(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		a, b string
		same bool
	}{
		"IPv4":        {"10.0.0.1:1", "10.0.0.1:2", true},
		"others":      {"10.0.0.1:1", "10.0.0.2:1", false},
		"mapped":      {"10.0.0.1:1", "[::ffff:10.0.0.1]:1", true},
		"one /64":     {"[2001:db8::1]:1", "[2001:db8::ffff:1]:1", true},
		"other /64":   {"[2001:db8::1]:1", "[2001:db8:0:1::1]:1", false},
		"zones":       {"[fe80::1%eth0]:1", "[fe80::2%eth1]:1", true},
		"no address":  {"pipe", "pipe", true},
		"and with it": {"pipe", "10.0.0.1:1", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, a := sourceOf(text(c.a))
			_, b := sourceOf(text(c.b))
			if (a == b) != c.same {
				t.Errorf("sources %s and %s", a, b)
			}
		})
	}
}

type text string

func (t text) Network() string { return "tcp" }
func (t text) String() string  { return string(t) }

func TestAuditIsBounded(t *testing.T) {
	t.Parallel()
	b := newBook()
	g := newGate(Limits{Reports: Rate{1, 10}, ReportsAll: Rate{1, 15}}.filled())
	a := auditor{gate: g, hear: b.hear}
	now := time.Unix(0, 0)
	for n := range 1000 {
		a.refused(address(1), Refused{At: now, Reason: fmt.Sprint(n)})
	}
	if b.len() != 10 {
		t.Fatalf("Audit heard of %d, want 10", b.len())
	}
	a.refused(address(2), Refused{At: now, Reason: "of another source"})
	if got := b.all[10]; got.Reason != "of another source" || got.Untold != 990 {
		t.Errorf("one source's noise hides another: %+v", got)
	}
}
