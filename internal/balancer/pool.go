// SPDX-License-Identifier: Apache-2.0

package balancer

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/core/roster"
	"github.com/slipway-project/slipway/internal/splice"
)

// pool is the API servers and the connections to them.
//
//	            answers                     two misses, or refused
//	unknown ────────────► ready ◄────────────────────────────► out
//	                                  answers
//
// Connections to one that is out, or gone from the roster, are closed as soon as another is ready: while there is nowhere
// to go to, closing them would only make things worse.
type pool struct {
	c     Config
	pace  pace
	self  string // an endpoint that is this balancer itself would make a loop
	trust *trust

	mu         sync.Mutex // guards the fields below, and those of the servers
	generation uint64
	servers    []*server
	gone       []*server // left the roster, with connections still open
	changed    chan struct{}
}

// server is one API server. Its fields are guarded by the pool's mutex.
type server struct {
	addr  string
	last  bool // asked when all others do not answer: a load balancer
	state state
	why   string
	since time.Time
	falls int // how often it went out, or from the roster
	conns map[*link]struct{}
	meant int                // connections that are being made and will likely be to it: a burst spreads evenly, too
	stop  context.CancelFunc // of its watch
}

type state int

const (
	unknown state = iota
	ready
	out
)

func (s state) String() string { return [...]string{"unknown", "ready", "out"}[s] }

// link is one client's connection and what it is joined to.
type link struct{ client, server net.Conn }

// cut ends a link as a crashed server would, so that the client knows its request may be lost and asks again elsewhere.
func (l *link) cut() { splice.Reset(l.client); splice.Reset(l.server) }

func newPool(c Config, p pace, self string) *pool {
	return &pool{c: c, pace: p, self: self, trust: &trust{file: c.ClusterCA}, changed: make(chan struct{})}
}

// use takes over a roster, keeping what is known of servers that stay. It starts a watch for each new one; watch must not
// block. It reports whether the roster was newer.
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
	p.tellLocked()
	p.sweepLocked()
	return true
}

// tellLocked wakes those who wait for servers.
func (p *pool) tellLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// set records what is known of a server now.
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
	if now == out {
		s.falls++
		level = slog.LevelWarn
	}
	p.c.Log.Log(context.Background(), level, "API server is "+now.String(), "server", s.addr, "why", why,
		"was", was.String(), "for", lasted.Round(time.Millisecond), "connections", len(s.conns))
	p.sweepLocked()
}

// sweepLocked closes the connections that have a better place to go to.
func (p *pool) sweepLocked() {
	if !slices.ContainsFunc(p.servers, func(s *server) bool { return s.state == ready }) {
		return
	}
	for _, s := range slices.Concat(p.servers, p.gone) {
		if s.state == out || slices.Contains(p.gone, s) {
			for l := range s.conns {
				l.cut()
			}
		}
	}
	p.gone = slices.DeleteFunc(p.gone, func(s *server) bool { return len(s.conns) == 0 })
}

// choice is a server as a new connection sees it.
type choice struct {
	*server
	falls int
}

// order is the servers in the order in which a new connection tries them: those that are ready, then those nobody has heard
// of yet, then those that are out; a load balancer after its equals. Among equals the one with the fewest connections is
// first, and chance decides the rest. The first of all counts one more until release is called. The channel is closed when
// there are others.
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
		return nil, func() {}, p.changed
	}
	sorted[0].meant++
	return list, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		sorted[0].meant--
	}, p.changed
}

func (s *server) rank() int {
	rank := [...]int{ready: 0, unknown: 2, out: 4}[s.state]
	if s.last {
		rank++
	}
	return rank
}

// join counts a connection to a server from now on. If the server fell since it was chosen, the connection may be to a dead
// one, and is closed when there is a better place.
func (p *pool) join(c choice, l *link) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := c.server
	s.conns[l] = struct{}{}
	if s.falls != c.falls {
		if !slices.Contains(p.servers, s) && !slices.Contains(p.gone, s) {
			p.gone = append(p.gone, s)
		}
		p.sweepLocked()
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(s.conns, l)
	}
}
