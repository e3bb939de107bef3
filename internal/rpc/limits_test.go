// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
)

// from is a dialer that connects from another address of the loopback network.
func from(source string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}).DialContext(ctx, "tcp", addr)
	}
}

// Not parallel: it counts the goroutines of the whole process.
func TestManyConnectionsFromOneSource(t *testing.T) {
	s := startServer(t, ServerOptions{}, AnyKey, joiner{}, initer{})
	before := runtime.NumGoroutine()
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			for range 100 {
				c, err := from("127.0.0.66")(t.Context(), s.addr)
				if err != nil {
					continue // the kernel's queue is full
				}
				t.Cleanup(func() { c.Close() })
			}
		})
	}
	group.Wait()
	s.wait(t, "the source has 32 connections")
	if unknown, _ := s.count(); unknown > 32 {
		t.Errorf("one source has %d connections, want at most 32", unknown)
	}
	if more := runtime.NumGoroutine() - before; more > 32*4+100 {
		t.Errorf("2000 connections started %d goroutines", more)
	}
	_, cert := identity(t)
	conn := dialWith(t, s.addr, ClientOptions{Pin: s.pin, Certificate: cert, Dialer: from("127.0.0.77")})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := initv1.NewInitClient(conn).Facts(ctx, &initv1.FactsRequest{}); err != nil {
		t.Errorf("call from another source: %v", err)
	}
}

func address(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

func TestSlotsReservedForNewSources(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	g := newLimiter(Limits{ConnectionsAll: Rate{1e6, 1e6}}.withDefaults())
	in := 0
	for source := range 20 {
		for range 32 {
			if g.admit(address(source), now) == nil {
				in++
			}
		}
	}
	// Twelve sources fill three quarters; each of the others gets its first one.
	if want := 384 + 8; in != want || g.unknown != want {
		t.Errorf("got %d connections, want %d", in, want)
	}
	for source := 20; source < 2000; source++ {
		_ = g.admit(address(source), now)
	}
	if g.unknown != 512 {
		t.Errorf("got %d connections, want 512", g.unknown)
	}
	g.release(address(0), false)
	if err := g.admit(address(0), now); err == nil {
		t.Error("a source with connections got a reserved slot")
	}
	if err := g.admit(address(5000), now); err != nil {
		t.Errorf("new source with a free slot: %v", err)
	}
}

func TestConnectionRates(t *testing.T) {
	t.Parallel()
	l := Limits{Connections: Rate{10, 20}, ConnectionsAll: Rate{100, 40}, PerSource: 1000, Total: 100000}.withDefaults()
	now := time.Unix(0, 0)
	g := newLimiter(l)
	rush := func(source, n int) (in int) {
		for range n {
			if g.admit(address(source), now) == nil {
				in++
			}
		}
		return in
	}
	if in := rush(1, 100); in != 20 {
		t.Errorf("first source: got %d connections, want its burst of 20", in)
	}
	if in := rush(2, 100); in != 10 {
		t.Errorf("second source: got %d connections, want the 10 that are not reserved for new sources", in)
	}
	for source := 3; source < 13; source++ {
		if rush(source, 1) != 1 {
			t.Errorf("new source %d was refused", source)
		}
	}
	if rush(100, 1) != 0 {
		t.Error("a connection beyond the total rate was admitted")
	}
	now = now.Add(time.Second)
	if in := rush(1, 100); in != 10 {
		t.Errorf("first source after a second: got %d connections, want 10", in)
	}
}

func TestIdleSourcesAreRemoved(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	g := newLimiter(Limits{}.withDefaults())
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
		t.Errorf("got %d rows, want at most %d", len(g.sources), maxSources)
	}
}

// With more active sources than rows, refused sources fill half of the table and admitted ones the rest.
func TestSourceTableIsBounded(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	g := newLimiter(Limits{ConnectionsAll: Rate{1e9, 1e9}, ReportsAll: Rate{1e9, 1e9}}.withDefaults())
	for n := range 2 * maxSources {
		g.allowReport(address(n), now)
	}
	if len(g.sources) != maxSources/2 {
		t.Errorf("got %d rows for refused sources, want %d", len(g.sources), maxSources/2)
	}
	in := 0
	for n := range 2 * maxSources {
		if g.admit(address(1_000_000+n), now) == nil {
			g.release(address(1_000_000+n), false)
			in++
		}
	}
	if in != maxSources/2 || len(g.sources) != maxSources {
		t.Errorf("got %d admitted sources and %d rows", in, len(g.sources))
	}
	if err := g.admit(address(3_000_000), now.Add(2*time.Second)); err != nil {
		t.Errorf("new source after idle rows could be removed: %v", err)
	}
}

func TestSources(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		a, b string
		same bool
	}{
		"IPv4":             {"10.0.0.1:1", "10.0.0.1:2", true},
		"different IPv4":   {"10.0.0.1:1", "10.0.0.2:1", false},
		"mapped":           {"10.0.0.1:1", "[::ffff:10.0.0.1]:1", true},
		"one /64":          {"[2001:db8::1]:1", "[2001:db8::ffff:1]:1", true},
		"other /64":        {"[2001:db8::1]:1", "[2001:db8:0:1::1]:1", false},
		"zones":            {"[fe80::1%eth0]:1", "[fe80::2%eth1]:1", true},
		"no address":       {"pipe", "pipe", true},
		"no address, IPv4": {"pipe", "10.0.0.1:1", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, a := sourceOf(text(c.a))
			_, b := sourceOf(text(c.b))
			if (a == b) != c.same {
				t.Errorf("got sources %s and %s, want same=%t", a, b, c.same)
			}
		})
	}
}

type text string

func (t text) Network() string { return "tcp" }
func (t text) String() string  { return string(t) }

func TestAuditIsBounded(t *testing.T) {
	t.Parallel()
	b := newAuditLog()
	g := newLimiter(Limits{Reports: Rate{1, 10}, ReportsAll: Rate{1, 15}}.withDefaults())
	a := auditor{limiter: g, report: b.add}
	now := time.Unix(0, 0)
	for n := range 1000 {
		a.refused(address(1), Refused{At: now, Reason: fmt.Sprint(n)})
	}
	if b.len() != 10 {
		t.Fatalf("got %d reports, want 10", b.len())
	}
	a.refused(address(2), Refused{At: now, Reason: "from another source"})
	if got := b.all[10]; got.Reason != "from another source" || got.Suppressed != 990 {
		t.Errorf("got %+v, want the report of the other source and 990 suppressed", got)
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Not parallel: it measures the whole process.
func TestFloodLeaksNothing(t *testing.T) {
	refuse := both(deny(codes.PermissionDenied, "unknown machine", ""))
	s := startServer(t, ServerOptions{Authorize: refuse, Limits: Limits{Connections: Rate{1e6, 1e6}, ConnectionsAll: Rate{1e6, 1e6}}, Audit: func(Refused) {}}, AnyKey, joiner{}, initer{})
	memory, goroutines := heap(), runtime.NumGoroutine()
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 100 {
				conn, err := from("127.0.0.66")(t.Context(), s.addr)
				if err != nil {
					continue
				}
				_, _ = io.WriteString(conn, strings.Repeat("\x16\x03\x01garbage", 100))
				conn.Close()
			}
			_, cert := identity(t)
			conn, err := Dial(s.addr, ClientOptions{Pin: s.pin, Certificate: cert})
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = conn.Close() }()
			for range 200 {
				_, err := initv1.NewInitClient(conn).Init(t.Context(), &initv1.InitRequest{Ticket: make([]byte, 1<<19)})
				if code := status.Code(err); code != codes.PermissionDenied && code != codes.ResourceExhausted {
					t.Errorf("call during the flood: got %v, want PermissionDenied or ResourceExhausted", err)
				}
			}
		})
	}
	group.Wait()
	s.waitNoConnections(t)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); runtime.NumGoroutine() > goroutines+4; <-tick.C {
		if time.Since(began) > 10*time.Second {
			t.Fatalf("goroutines: %d before the flood, %d after", goroutines, runtime.NumGoroutine())
		}
	}
	if grown := heap() - memory; grown > 4<<20 {
		t.Errorf("heap grew by %d bytes", grown)
	}
}

// While one source makes a thousand bad requests a second, a call from another source is answered in time.
func TestGoodCallDuringAFlood(t *testing.T) {
	t.Parallel()
	s := startServer(t, ServerOptions{Audit: func(Refused) {}}, AnyKey, joiner{}, initer{})
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			tick := time.NewTicker(4 * time.Millisecond)
			defer tick.Stop()
			for ctx.Err() == nil {
				<-tick.C
				if conn, err := from("127.0.0.66")(ctx, s.addr); err == nil {
					_, _ = io.WriteString(conn, "\x16\x03\x01\x00\x05bad!!")
					conn.Close()
				}
			}
		})
	}
	for range 5 {
		_, cert := identity(t)
		conn := dialWith(t, s.addr, ClientOptions{Pin: s.pin, Certificate: cert, Dialer: from("127.0.0.77")})
		began := time.Now()
		if _, err := initv1.NewInitClient(conn).Facts(t.Context(), &initv1.FactsRequest{}); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("a good call took %s, want at most 10s", took)
		}
	}
	cancel()
	group.Wait()
}
