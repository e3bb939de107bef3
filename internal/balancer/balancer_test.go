// SPDX-License-Identifier: Apache-2.0

package balancer

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/core/roster"
)

// Open connections are distributed evenly over the servers.
func TestSpreads(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.publish(t, 1, c.joinCA, c.servers...)
	c.start(t, nil)
	c.transport.DisableKeepAlives = true
	await(t, "all servers are ready", 30*time.Second, func() bool {
		seen := map[string]bool{}
		for range 6 {
			seen[c.mustAsk(t)] = true
		}
		return len(seen) == 3
	})
	for range 30 {
		conn, err := net.Dial("tcp", c.front)
		must(t, err)
		t.Cleanup(func() { conn.Close() })
	}
	await(t, "each server has 10 of 30 connections", 30*time.Second, func() bool {
		for _, s := range c.servers {
			s.mu.Lock()
			n := len(s.conns)
			s.mu.Unlock()
			if n != 11 { // including the balancer's probe
				return false
			}
		}
		return true
	})
}

// outage sends requests continuously while a server is removed, and returns how long after that the last
// request failed or finished after hanging. On a busy machine some answers are slow; they are only logged.
func outage(t *testing.T, c *cluster, takeAway func(server string)) time.Duration {
	t.Helper()
	const slow, hung = 100 * time.Millisecond, time.Second
	var server string
	await(t, "a first answer", 30*time.Second, func() bool {
		var err error
		server, err = c.ask(t.Context())
		return err == nil
	})
	c.client.Timeout = 5 * time.Second
	begun := time.Now()
	takeAway(server)
	last, moved := begun, false
	for !moved || time.Since(last) < time.Second { // the outage is over after a second without errors
		at := time.Now()
		name, err := c.ask(t.Context())
		took := time.Since(at).Round(time.Millisecond)
		if moved = moved || (err == nil && name != server); took > slow || err != nil {
			t.Logf("after %s: answer of %q took %s: %v", at.Sub(begun).Round(time.Millisecond), name, took, err)
		}
		if err != nil || took > hung {
			last = time.Now()
		}
		if time.Since(begun) > 20*time.Second {
			t.Fatal("the outage does not end")
		}
	}
	return last.Sub(begun)
}

func TestServerIsKilled(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.publish(t, 1, c.joinCA, c.servers...)
	c.start(t, nil)
	errorsFor := outage(t, c, func(server string) { c.servers[server[0]-'0'].kill() })
	if t.Logf("got errors for %s", errorsFor); errorsFor > 3*time.Second {
		t.Errorf("got errors for %s", errorsFor)
	}
}

// A machine that is lost does not answer at all: packets are dropped and new connections hang.
func TestMachineIsLost(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.publish(t, 1, c.joinCA, c.servers...)
	n := &network{lost: map[string]chan struct{}{}}
	for _, s := range c.servers {
		n.lost[s.addr.String()] = make(chan struct{})
	}
	c.start(t, n.dial)
	errorsFor := outage(t, c, func(server string) { close(n.lost[c.servers[server[0]-'0'].addr.String()]) })
	if t.Logf("got errors for %s", errorsFor); errorsFor > 3*time.Second || errorsFor < 500*time.Millisecond {
		t.Errorf("got errors for %s", errorsFor)
	}
}

// network simulates lost machines: their connections stay open, but no data arrives.
type network struct{ lost map[string]chan struct{} }

func (n *network) dial(ctx context.Context, netw, addr string) (net.Conn, error) {
	select {
	case <-n.lost[addr]:
		<-ctx.Done()
		return nil, ctx.Err()
	default:
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, netw, addr)
	if err != nil {
		return nil, err
	}
	near, far := pipe()
	go func() { defer near.Close(); carry(near, conn, n.lost[addr]) }()
	go func() { defer conn.Close(); carry(conn, near, n.lost[addr]) }()
	return far, nil
}

// carry copies until the machine is lost, and then drops everything.
func carry(dst, src net.Conn, lost chan struct{}) {
	buf := make([]byte, 16<<10)
	for {
		k, err := src.Read(buf)
		select {
		case <-lost:
			if err == nil {
				continue
			}
			_ = dst.Close() // the balancer has closed it
			return
		default:
		}
		if _, werr := dst.Write(buf[:k]); err != nil || werr != nil {
			return
		}
	}
}

func pipe() (near, far net.Conn) { return net.Pipe() }

// A server that does not accept delays a new connection by 250 ms, even before its probe has failed.
func TestHangingDialIsRaced(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	lost := netip.MustParseAddrPort("192.0.2.1:6443")
	r := c.roster(c.servers...)
	r.API = []netip.AddrPort{lost, c.servers[0].addr}
	p := newPool(Config{Log: slog.New(slog.DiscardHandler), Rand: func(n int) int { return n - 1 }, Dial: func(ctx context.Context, n, addr string) (net.Conn, error) {
		if addr == lost.String() {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return (&net.Dialer{}).DialContext(ctx, n, addr)
	}}, defaultTiming(), "")
	p.use(r, func(s *server) { s.stop = func() {} })
	begun := time.Now()
	conn, s, release := p.connect(t.Context())
	if conn == nil || s.addr != c.servers[0].addr.String() {
		t.Fatal("not connected to the server that accepts")
	}
	release()
	conn.Close()
	if took := time.Since(begun); took < 200*time.Millisecond || took > 20*time.Second {
		t.Errorf("connecting took %s", took)
	}
}

// While no server is ready, all are tried and no connection is closed.
func TestNoneReady(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	for _, s := range c.servers {
		s.ready.Store(false)
	}
	c.publish(t, 1, c.joinCA, c.servers...)
	c.start(t, nil)
	conn, err := net.Dial("tcp", c.front)
	must(t, err)
	defer conn.Close()
	gone := make(chan error, 1)
	go func() { _, err := io.ReadAll(conn); gone <- err }()
	deadline := time.After(2500 * time.Millisecond) // both are unreachable after two probes
	for {
		c.mustAsk(t)
		select {
		case err := <-gone:
			t.Fatalf("the connection was closed: %v", err)
		case <-time.After(10 * time.Millisecond):
			continue
		case <-deadline:
		}
		break
	}
	c.servers[0].ready.Store(true)
	c.servers[1].ready.Store(true)
	for range 4 { // each server gets some of them, and none is refused
		c.mustAsk(t)
	}
}

// The connections to a server that is not ready are closed if another server is ready.
func TestNotReadyIsLeft(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.publish(t, 1, c.joinCA, c.servers...)
	c.start(t, nil)
	first := c.mustAsk(t)
	c.servers[first[0]-'0'].ready.Store(false)
	await(t, "the client uses the other server", 30*time.Second, func() bool {
		name, err := c.ask(t.Context())
		return err == nil && name != first
	})
}

func TestFollowsRoster(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start(t, nil)
	answer := make(chan string, 1)
	go func() { name, _ := c.ask(t.Context()); answer <- name }() // waits for a roster
	c.publish(t, 5, c.joinCA, c.servers[0])
	if got := <-answer; got != "0" {
		t.Fatalf("got answer from %q", got)
	}
	c.publish(t, 6, c.joinCA, c.servers[1]) // server 0 leaves the cluster, but keeps running
	await(t, "the client uses the new server", 12*time.Second, func() bool { name, err := c.ask(t.Context()); return err == nil && name == "1" })
	c.publish(t, 4, c.joinCA, c.servers[2])                          // older
	c.publish(t, 9, certtest.NewAuthority(t, "other"), c.servers[2]) // signed by another CA
	c.transport.CloseIdleConnections()
	for range 20 {
		if got := c.mustAsk(t); got != "1" {
			t.Fatalf("got answer from %q", got)
		}
	}
	c.publish(t, 7, c.joinCA, c.servers[2])
	await(t, "the next roster is used", 12*time.Second, func() bool { name, err := c.ask(t.Context()); return err == nil && name == "2" })
}

// A server without the right certificate is never ready, and gets connections only if no server is ready.
func TestImpostor(t *testing.T) {
	t.Parallel()
	for name, cert := range map[string]func(c *cluster) *api{
		"other CA": func(c *cluster) *api {
			return newAPI(t, "impostor", certtest.NewAuthority(t, "other").Server(t, "kubernetes"))
		},
		"kubelet": func(c *cluster) *api { return newAPI(t, "impostor", c.podCA.Server(t, "dev-worker-0")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 1)
			impostor := cert(c)
			c.publish(t, 1, c.joinCA, impostor, c.servers[0])
			c.start(t, nil)
			await(t, "20 consecutive connections to the real server", 30*time.Second, func() bool {
				c.transport.CloseIdleConnections()
				for range 20 {
					if _, err := c.ask(t.Context()); err != nil {
						return false
					}
					c.transport.CloseIdleConnections()
				}
				return true
			})
		})
	}
}

func TestOrder(t *testing.T) {
	t.Parallel()
	p := newPool(Config{Log: slog.New(slog.DiscardHandler), Rand: func(n int) int { return n - 1 }}, defaultTiming(), "127.0.0.1:6443")
	at := netip.MustParseAddrPort
	r := roster.Roster{Generation: 1, API: []netip.AddrPort{at("127.0.0.1:6443"), at("10.0.0.1:1"), at("10.0.0.2:1"), at("10.0.0.3:1"), at("10.0.0.4:1"), at("10.0.0.4:1")}, Extra: []string{"lb.example", "10.0.0.4:1"}}
	p.use(r, func(s *server) { s.stop = func() {} })
	names := func() (out []string) {
		list, release, _ := p.order()
		release()
		for _, s := range list {
			out = append(out, s.addr)
		}
		return out
	}
	want := []string{"10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "10.0.0.4:1", "lb.example:6443"}
	if diff := cmp.Diff(want, names()); diff != "" {
		t.Errorf("all unknown (-want +got): %s", diff)
	}
	byAddr := map[string]*server{}
	for _, s := range p.servers {
		byAddr[s.addr] = s
	}
	p.set(byAddr["lb.example:6443"], ready, "")
	p.set(byAddr["10.0.0.3:1"], ready, "")
	p.set(byAddr["10.0.0.2:1"], ready, "")
	p.set(byAddr["10.0.0.1:1"], unreachable, "test")
	a, b := net.Pipe()
	defer b.Close()
	p.join(choice{byAddr["10.0.0.2:1"], 0}, &link{a, a})
	want = []string{"10.0.0.3:1", "10.0.0.2:1", "lb.example:6443", "10.0.0.4:1", "10.0.0.1:1"}
	if diff := cmp.Diff(want, names()); diff != "" {
		t.Errorf("some known (-want +got): %s", diff)
	}
}

// A connection to a server that fails in the meantime is closed.
func TestFailsWhileConnecting(t *testing.T) {
	t.Parallel()
	p := newPool(Config{Log: slog.New(slog.DiscardHandler), Rand: func(int) int { return 0 }}, defaultTiming(), "")
	at := netip.MustParseAddrPort
	p.use(roster.Roster{Generation: 1, API: []netip.AddrPort{at("10.0.0.1:1"), at("10.0.0.2:1")}}, func(s *server) { s.stop = func() {} })
	p.set(p.servers[1], ready, "")
	chosen := choice{p.servers[0], p.servers[0].falls}
	p.set(p.servers[0], unreachable, "test")
	near, far := net.Pipe()
	must(t, far.SetReadDeadline(time.Now().Add(30*time.Second)))
	defer p.join(chosen, &link{near, near})()
	if _, err := far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("connection is still open: %v", err)
	}
}

func TestCommand(t *testing.T) {
	for name, args := range map[string][]string{"nothing": nil, "unknown flag": {"--frob"}, "no CA": {"--roster", "r", "--ca", "c"}, "more": {"--roster", "r", "--ca", "c", "--cluster-ca", "d", "e"}} {
		if err := Command(t.Context(), args, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "agent") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	dir := t.TempDir()
	ear, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	must(t, err)
	defer func() { _ = ear.Close() }()
	t.Setenv("NOTIFY_SOCKET", filepath.Join(dir, "notify"))
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		if err := Command(ctx, []string{"--listen", "127.0.0.1:0", "--roster", dir + "/r", "--ca", dir + "/c", "--cluster-ca", dir + "/d"}, slog.New(slog.DiscardHandler)); err != nil {
			t.Error(err)
		}
	})
	must(t, ear.SetReadDeadline(time.Now().Add(10*time.Second)))
	buf := make([]byte, 100)
	n, err := ear.Read(buf)
	cancel()
	all.Wait()
	if string(buf[:n]) != "READY=1" || err != nil {
		t.Errorf("%q, %v", buf[:n], err)
	}
}
