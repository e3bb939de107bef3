// SPDX-License-Identifier: Apache-2.0

package balancer

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/slipway-project/slipway/internal/broadcast"
	"github.com/slipway-project/slipway/internal/core/roster"
)

// pool is the set of API servers and of the connections to them.
//
//	            probe ok                    two failed probes, or refused
//	unknown ────────────► ready ◄────────────────────────────► unreachable
//	                                  probe ok
//
// Connections to a server that is unreachable or no longer in the roster are closed as soon as another server
// is ready. Before that, closing them would not help.
type pool struct {
	c      Config
	timing timing
	self   string // this balancer's own endpoint: connecting to it would be a loop
	trust  *trust

	mu         sync.Mutex // guards the fields below, and those of the servers
	generation uint64
	servers    []*server
	gone       []*server        // no longer in the roster, but with open connections
	changed    broadcast.Signal // of servers
}

// server is one API server. Its fields are guarded by the pool's mutex.
type server struct {
	addr  string
	last  bool // a load balancer: tried after the servers in the same state
	state state
	why   string
	since time.Time
	falls int // how often it became unreachable or was removed from the roster
	conns map[*link]struct{}
	meant int                // connections in progress that will probably go to it, so that bursts are spread evenly
	stop  context.CancelFunc // ends its probes
}

// state is the result of the probes of a server.
type state int

const (
	unknown state = iota
	ready
	unreachable
)

func (s state) String() string { return [...]string{"unknown", "ready", "unreachable"}[s] }

// link is a client's connection and the server connection it is joined to.
type link struct{ client, server net.Conn }

// cut resets a link as a crashed server would, so that the client knows that its request may be lost and
// retries.
func (l *link) cut() { Reset(l.client); Reset(l.server) }

func newPool(c Config, t timing, self string) *pool {
	return &pool{c: c, timing: t, self: self, trust: &trust{file: c.ClusterCA}}
}

// use replaces the servers by those of a roster, but keeps the state of servers in both. It calls watch,
// which must not block, for each new one. It reports whether the roster was newer.
func (p *pool) use(r roster.Roster, watch func(s *server)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.servers != nil && r.Generation <= p.generation {
		return false
	}
	p.generation = r.Generation
	old := p.servers
	p.servers = make([]*server, 0, len(r.API)+len(r.Extra))
	add := func(addr string, last bool) {
		same := func(s *server) bool { return s.addr == addr }
		if addr == p.self || slices.ContainsFunc(p.servers, same) {
			return
		}
		if i := slices.IndexFunc(old, same); i >= 0 {
			old[i].last = last
			p.servers = append(p.servers, old[i])
			return
		}
		s := &server{addr: addr, last: last, since: time.Now(), conns: map[*link]struct{}{}}
		p.servers = append(p.servers, s)
		watch(s)
	}
	for _, a := range r.API {
		add(a.String(), false)
	}
	for _, e := range r.Extra {
		add(withPort(e), true)
	}
	for _, s := range old {
		if !slices.Contains(p.servers, s) {
			s.stop()
			s.falls++
			p.gone = append(p.gone, s)
		}
	}
	p.changed.Notify()
	p.cutLostLocked()
	return true
}

// set records the state of a server.
func (p *pool) set(s *server, now state, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was, lasted := s.state, time.Since(s.since)
	s.why = why
	if was == now {
		return
	}
	s.state, s.since = now, time.Now()
	level := slog.LevelInfo
	if now == unreachable {
		s.falls++
		level = slog.LevelWarn
	}
	p.c.Log.Log(context.Background(), level, "API server is "+now.String(), "server", s.addr, "why", why,
		"was", was.String(), "for", lasted.Round(time.Millisecond), "connections", len(s.conns))
	p.cutLostLocked()
}

// cutLostLocked closes the connections to lost servers if a ready one exists.
func (p *pool) cutLostLocked() {
	if !slices.ContainsFunc(p.servers, func(s *server) bool { return s.state == ready }) {
		return
	}
	for _, s := range slices.Concat(p.servers, p.gone) {
		if s.state == unreachable || slices.Contains(p.gone, s) {
			for l := range s.conns {
				l.cut()
			}
		}
	}
	p.gone = slices.DeleteFunc(p.gone, func(s *server) bool { return len(s.conns) == 0 })
}

// choice is a server and its number of failures at the time it was chosen.
type choice struct {
	*server
	falls int
}

// order lists the servers in the order in which a new connection tries them: ready, then unknown, then
// unreachable ones; load balancers after servers in the same state. Among equals, those with the fewest
// connections come first; ties are broken at random. The first server counts one more connection until
// release is called. The channel is closed when the servers change.
func (p *pool) order() (list []choice, release func(), changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sorted := slices.Clone(p.servers)
	for i := len(sorted) - 1; i > 0; i-- {
		j := p.c.Rand(i + 1)
		sorted[i], sorted[j] = sorted[j], sorted[i]
	}
	slices.SortStableFunc(sorted, func(a, b *server) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(len(a.conns)+a.meant, len(b.conns)+b.meant))
	})
	for _, s := range sorted {
		list = append(list, choice{s, s.falls})
	}
	if len(sorted) == 0 {
		return nil, func() {}, p.changed.Wait()
	}
	sorted[0].meant++
	return list, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		sorted[0].meant--
	}, p.changed.Wait()
}

// rank is the server's position in order: lower ranks first.
func (s *server) rank() int {
	rank := [...]int{ready: 0, unknown: 2, unreachable: 4}[s.state]
	if s.last {
		rank++
	}
	return rank
}

// join counts a connection to a server. If the server has failed since it was chosen, the connection may be
// dead, and is closed once another server is ready.
func (p *pool) join(c choice, l *link) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := c.server
	s.conns[l] = struct{}{}
	if s.falls != c.falls {
		if !slices.Contains(p.servers, s) && !slices.Contains(p.gone, s) {
			p.gone = append(p.gone, s)
		}
		p.cutLostLocked()
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(s.conns, l)
	}
}

// serve joins a client to a server until both directions have ended, one has failed, the connection is cut,
// or ctx ends.
func (p *pool) serve(ctx context.Context, client net.Conn) {
	defer client.Close()
	conn, s, release := p.connect(ctx)
	if conn == nil {
		Reset(client)
		return
	}
	defer conn.Close()
	l := &link{client, conn}
	leave := p.join(s, l)
	release()
	defer leave()
	defer context.AfterFunc(ctx, l.cut)()
	var back sync.WaitGroup
	back.Go(func() { Splice(client, conn) })
	Splice(conn, client)
	back.Wait()
}

// dialed is the result of dialling a server.
type dialed struct {
	s    choice
	conn net.Conn
	err  error
}

// connect returns a connection to the first server that accepts. If one refuses, it tries the next at once;
// if one hangs, it tries the next in parallel. If there are no servers yet, it waits for them. The caller
// calls release after join.
func (p *pool) connect(ctx context.Context) (conn net.Conn, s choice, release func()) {
	ctx, cancel := context.WithTimeout(ctx, p.timing.dial)
	defer cancel()
	for {
		list, release, changed := p.order()
		if conn, s := p.race(ctx, list); conn != nil {
			return conn, s, release
		}
		release()
		if len(list) > 0 { // all have failed: the client has to retry
			return nil, choice{}, nil
		}
		select {
		case <-ctx.Done():
			return nil, choice{}, nil
		case <-changed:
		}
	}
}

// race dials the servers in order, with overlap, and returns the first connection.
func (p *pool) race(ctx context.Context, list []choice) (net.Conn, choice) {
	ctx, cancel := context.WithCancel(ctx)
	results := make(chan dialed)
	running, next := 0, 0
	defer func() { // close connections that lost the race
		cancel()
		go func(n int) {
			for range n {
				if r := <-results; r.conn != nil {
					_ = r.conn.Close()
				}
			}
		}(running)
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for next < len(list) || running > 0 {
		select {
		case <-timer.C:
			if next == len(list) {
				continue
			}
			s := list[next]
			next, running = next+1, running+1
			go func() {
				conn, err := p.c.Dial(ctx, "tcp", s.addr)
				results <- dialed{s, conn, err}
			}()
			timer.Reset(p.timing.race)
		case r := <-results:
			running--
			if r.err == nil {
				return r.conn, r.s
			}
			if errors.Is(r.err, syscall.ECONNREFUSED) {
				p.set(r.s.server, unreachable, "connection refused")
			}
			timer.Reset(0)
		}
	}
	return nil, choice{}
}
