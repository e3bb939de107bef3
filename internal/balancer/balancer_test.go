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

	"github.com/slipway-project/slipway/internal/core/roster"
)

// Connections that stay open end up evenly on the servers.
func TestSpreads(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.publish(t, 1, c.joinCA, c.servers...)
	c.start(t, nil)
	c.transport.DisableKeepAlives = true
	await(t, "all servers are known to be ready", 30*time.Second, func() bool {
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
	await(t, "30 connections lie 10 on each server", 30*time.Second, func() bool {
		for _, s := range c.servers {
			s.mu.Lock()
			n := len(s.conns)
			s.mu.Unlock()
			if n != 11 { // and the balancer's own
				return false
			}
		}
		return true
	})
}

// outage has a client ask all the time while a server is taken away, and returns how long after that the last question failed,
// or was answered at last after it had hung. A busy machine makes some answers slow; those are no outage and only told.
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
	for !moved || time.Since(last) < time.Second { // a second without trouble is the end of it
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
			t.Fatal("there is no end of it")
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
	if t.Logf("errors for %s", errorsFor); errorsFor > 3*time.Second {
		t.Errorf("errors for %s", errorsFor)
	}
}

// A machine that is lost says nothing: packets go nowhere, new connections hang.
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
	if t.Logf("errors for %s", errorsFor); errorsFor > 3*time.Second || errorsFor < 500*time.Millisecond {
		t.Errorf("errors for %s", errorsFor)
	}
}

// network can lose machines: their connections stay open and carry nothing.
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

// carry copies until the machine is lost, and then swallows.
func carry(dst, src net.Conn, lost chan struct{}) {
	buf := make([]byte, 16<<10)
	for {
		k, err := src.Read(buf)
		select {
		case <-lost:
			if err == nil {
				continue
			}
			_ = dst.Close() // the balancer has closed it; nobody learns anything else
			return
		default:
		}
		if _, werr := dst.Write(buf[:k]); err != nil || werr != nil {
			return
		}
	}
}

func pipe() (near, far net.Conn) { return net.Pipe() }

// A server that hangs when it is dialled costs a new connection a quarter of a second, also before it is known to be lost.
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
		t.Fatal("not connected to the server that answers")
	}
	release()
	conn.Close()
	if took := time.Since(begun); took < 200*time.Millisecond || took > 20*time.Second {
		t.Errorf("took %s", took)
	}
}

// While no server is ready all are tried, and no connection is closed: that would only make things worse.
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
	deadline := time.After(2500 * time.Millisecond) // both are out after two questions
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
	for range 4 { // one of them is on each server sooner or later; nobody is refused meanwhile
		c.mustAsk(t)
	}
}

// A server that answers and says no is left for one that says yes, together with its connections.
func TestNotReadyIsLeft(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.publish(t, 1, c.joinCA, c.servers...)
	c.start(t, nil)
	first := c.mustAsk(t)
	c.servers[first[0]-'0'].ready.Store(false)
	await(t, "the client is on the other server", 30*time.Second, func() bool {
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
		t.Fatalf("%q answers", got)
	}
	c.publish(t, 6, c.joinCA, c.servers[1]) // 0 leaves the cluster while it runs
	await(t, "the client is moved to the new server", 12*time.Second, func() bool { name, err := c.ask(t.Context()); return err == nil && name == "1" })
	c.publish(t, 4, c.joinCA, c.servers[2])        // an older one
	c.publish(t, 9, newAuthority(t), c.servers[2]) // somebody else's
	c.transport.CloseIdleConnections()
	for range 20 {
		if got := c.mustAsk(t); got != "1" {
			t.Fatalf("%q answers", got)
		}
	}
	c.publish(t, 7, c.joinCA, c.servers[2])
	await(t, "the next roster counts", 12*time.Second, func() bool { name, err := c.ask(t.Context()); return err == nil && name == "2" })
}

// Who listens at a server's address without its certificate is never ready, and gets connections only when nobody else is.
func TestImpostor(t *testing.T) {
	t.Parallel()
	for name, cert := range map[string]func(c *cluster) *api{
		"other CA": func(c *cluster) *api { return newAPI(t, "impostor", newAuthority(t).leaf(t, "kubernetes")) },
		"kubelet":  func(c *cluster) *api { return newAPI(t, "impostor", c.podCA.leaf(t, "dev-worker-0")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 1)
			impostor := cert(c)
			c.publish(t, 1, c.joinCA, impostor, c.servers[0])
			c.start(t, nil)
			await(t, "20 connections in a row to the true server", 30*time.Second, func() bool {
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
		t.Errorf("nobody known: %s", diff)
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
		t.Errorf("some known: %s", diff)
	}
}

// A connection to a server that fell while it was made does not stay on it.
func TestFellMeanwhile(t *testing.T) {
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
		t.Errorf("still open: %v", err)
	}
}

func TestCommand(t *testing.T) {
	for name, args := range map[string][]string{"nothing": nil, "unknown flag": {"--frob"}, "no CA": {"--roster", "r", "--ca", "c"}, "more": {"--roster", "r", "--ca", "c", "--cluster-ca", "d", "e"}} {
		if err := Command(t.Context(), args, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "agent") {
			t.Errorf("%s: %v", name, err)
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
