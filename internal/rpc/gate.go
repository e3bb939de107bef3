// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	maxSources    = 8192 // that are remembered
	sourcesPrefix = 64   // bits of an IPv6 address that one customer has
)

// gate counts who has how many connections, and how fast new ones and calls come. Safe for concurrent use.
type gate struct {
	limits Limits

	mu        sync.Mutex // guards the fields below
	sources   map[netip.Addr]*source
	strangers int
	arrivals  bucket
	reports   bucket
	swept     time.Time
	untold    int // refusals that Audit has not heard of
}

// source is one row. Rows without connections and with full buckets say nothing and are dropped when room is needed.
type source struct {
	strangers, known         int
	arrivals, calls, reports bucket
}

func newGate(l Limits) *gate { return &gate{limits: l, sources: map[netip.Addr]*source{}} }

func sourceOf(a net.Addr) (netip.AddrPort, netip.Addr) {
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.AddrPort{}, netip.Addr{} // such as a pipe of a test: all of them are one source
	}
	ap = netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	if ap.Addr().Is4() {
		return ap, ap.Addr()
	}
	return ap, netip.PrefixFrom(ap.Addr().WithZone(""), sourcesPrefix).Masked().Addr()
}

// admit takes a slot for a new connection, or says why not.
func (g *gate) admit(from netip.Addr, now time.Time) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	l, reserve, kept := g.limits, 0.0, 0 // tokens and free slots that this one must leave to others
	s := g.sources[from]
	if s != nil {
		if !s.arrivals.full(l.Connections, now) {
			reserve = float64(l.ConnectionsAll.Burst) / 4
		}
		if s.strangers > 0 {
			kept = l.Total / 4
		}
		switch {
		case s.strangers >= l.PerSource:
			return fmt.Errorf("the source has %d connections, as many as it may", s.strangers)
		case !s.arrivals.take(l.Connections, 0, now):
			return fmt.Errorf("the source opens more than %g connections a second", l.Connections.PerSecond)
		}
	}
	switch {
	case l.Total-g.strangers <= kept:
		return fmt.Errorf("%d connections are open; the %d free slots are for other sources", g.strangers, l.Total-g.strangers)
	case !g.arrivals.take(l.ConnectionsAll, reserve, now):
		return fmt.Errorf("more than %g connections a second are opened by all", l.ConnectionsAll.PerSecond)
	}
	if s == nil { // made only now: whoever comes too often or too late costs no row
		if s = g.addLocked(from, maxSources, now); s == nil {
			return fmt.Errorf("%d sources are busy at the same time", maxSources)
		}
		s.arrivals.take(l.Connections, 0, now)
	}
	s.strangers++
	g.strangers++
	return nil
}

// addLocked is nil when the table holds as many rows as it may, and all of them matter. It looks for those that do not once a
// second at most: a crowd of sources must not make each connection expensive.
func (g *gate) addLocked(from netip.Addr, most int, now time.Time) *source {
	if len(g.sources) >= most && now.Sub(g.swept) >= time.Second {
		g.swept = now
		for a, s := range g.sources {
			if s.idle(g.limits, now) {
				delete(g.sources, a)
			}
		}
	}
	if len(g.sources) >= most {
		return nil
	}
	s := &source{}
	g.sources[from] = s
	return s
}

func (s *source) idle(l Limits, now time.Time) bool {
	return s.strangers == 0 && s.known == 0 && s.arrivals.full(l.Connections, now) && s.calls.full(l.Calls, now) && s.reports.full(l.Reports, now)
}

// know gives a stranger's slot back: the connection is one of ours. One source has twice as many of those at most.
func (g *gate) know(from netip.Addr) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.sources[from]
	if s == nil || s.known >= 2*g.limits.PerSource {
		return false
	}
	s.strangers, s.known = s.strangers-1, s.known+1
	g.strangers--
	return true
}

func (g *gate) release(from netip.Addr, known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.sources[from]
	if s == nil {
		return
	}
	if known {
		s.known--
		return
	}
	s.strangers--
	g.strangers--
}

// call takes a token for a call on a stranger's connection.
func (g *gate) call(from netip.Addr, now time.Time) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := g.sources[from]; s == nil || !s.calls.take(g.limits.Calls, 0, now) {
		return fmt.Errorf("the source makes more than %g calls a second", g.limits.Calls.PerSecond)
	}
	return nil
}

// tell says whether Audit may hear of one more refusal, and how many it has not heard of before this one.
func (g *gate) tell(from netip.Addr, now time.Time) (untold int, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.sources[from]
	if s == nil {
		s = g.addLocked(from, maxSources/2, now) // the other half is for those that are let in
	}
	if s == nil || !s.reports.take(g.limits.Reports, 0, now) || !g.reports.take(g.limits.ReportsAll, 0, now) {
		g.untold++
		return 0, false
	}
	untold, g.untold = g.untold, 0
	return untold, true
}
