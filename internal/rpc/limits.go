// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"sync"
	"time"
)

// NoTimeout lets a call last as long as its peer wants. The method's rule must identify the peer: once the rule has let a call
// through, the connection counts as that of a known peer.
const NoTimeout time.Duration = math.MaxInt64

const (
	keepaliveTime    = 20 * time.Second // an idle connection is pinged after that
	keepaliveTimeout = 10 * time.Second
	keepaliveMinTime = 10 * time.Second // a client that pings more often is disconnected

	maxSources   = 8192 // size of the limiter's table
	sourcePrefix = 64   // bits of an IPv6 address that usually belong to one customer
)

// Rate is a token bucket: Burst at once, PerSecond in the long run.
type Rate struct {
	PerSecond float64
	Burst     int
}

// Limits bounds the resources that unknown peers can use. A peer is known once a call without timeout has passed its rule. A zero
// field means its default. A source is an IPv4 address or an IPv6 /64.
type Limits struct {
	Handshake      time.Duration // TLS and the first HTTP/2 frames: 10 s
	HandshakeBytes int           // bytes that a client may send for them: 16 KiB
	Call           time.Duration // a call that ServerOptions.Timeout does not name: 30 s
	Age            time.Duration // an unknown peer's connection: 60 s, plus Call if a call is running then
	Idle           time.Duration // a connection without a call: 30 s
	Message        int           // bytes of one message of a client: 1 MiB
	Messages       int           // messages of a client in one call that has a timeout: 64
	Headers        int           // bytes of a call's header list: 16 KiB
	Streams        int           // concurrent calls on one connection: 16
	PerSource      int           // connections of unknown peers from one source: 32
	Total          int           // connections of unknown peers: 512; the last quarter is reserved for sources without a connection
	Connections    Rate          // new connections of one source: 16 per second, burst 64
	ConnectionsAll Rate          // new connections of all sources: 200 per second, burst 512; the last quarter is reserved for new sources
	Calls          Rate          // calls of one source on connections of unknown peers: 32 per second, burst 128
	Reports        Rate          // refusals of one source that are reported to Audit: 16 per second, burst 128; the others are counted
	ReportsAll     Rate          // refusals of all sources that are reported to Audit: 64 per second, burst 512
}

func (l Limits) withDefaults() Limits {
	setDefault(&l.Handshake, 10*time.Second)
	setDefault(&l.HandshakeBytes, 16<<10)
	setDefault(&l.Call, 30*time.Second)
	setDefault(&l.Age, 60*time.Second)
	setDefault(&l.Idle, 30*time.Second)
	setDefault(&l.Message, 1<<20)
	setDefault(&l.Messages, 64)
	setDefault(&l.Headers, 16<<10)
	setDefault(&l.Streams, 16)
	setDefault(&l.PerSource, 32)
	setDefault(&l.Total, 512)
	setDefault(&l.Connections, Rate{16, 64})
	setDefault(&l.ConnectionsAll, Rate{200, 512})
	setDefault(&l.Calls, Rate{32, 128})
	setDefault(&l.Reports, Rate{16, 128})
	setDefault(&l.ReportsAll, Rate{64, 512})
	return l
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// bucket is the state of one Rate. The zero value is full.
type bucket struct {
	used float64 // tokens taken and not yet refilled
	at   time.Time
}

// take takes one token if at least reserve tokens are left after that.
func (b *bucket) take(r Rate, reserve float64, now time.Time) bool {
	b.refill(r, now)
	if float64(r.Burst)-b.used-1 < reserve {
		return false
	}
	b.used++
	return true
}

func (b *bucket) refill(r Rate, now time.Time) {
	if passed := now.Sub(b.at); passed > 0 {
		b.used = max(0, b.used-passed.Seconds()*r.PerSecond)
		b.at = now
	}
}

// full reports whether all tokens are back, so that the bucket needs no row any more.
func (b *bucket) full(r Rate, now time.Time) bool {
	b.refill(r, now)
	return b.used == 0
}

// limiter counts the connections of each source and limits the rates of connections, calls and reports. It is safe for concurrent
// use.
type limiter struct {
	limits Limits

	mu         sync.Mutex // guards the fields below
	sources    map[netip.Addr]*source
	unknown    int // connections of unknown peers
	arrivals   bucket
	reports    bucket
	swept      time.Time // when unneeded rows were removed last
	suppressed int       // refusals that were not reported since the last report
}

// source is one row of the table. A row without connections and with full buckets holds no information and may be removed.
type source struct {
	unknown, known           int // connections
	arrivals, calls, reports bucket
}

func newLimiter(l Limits) *limiter { return &limiter{limits: l, sources: map[netip.Addr]*source{}} }

// sourceOf returns the address of a client and the source that it belongs to.
func sourceOf(a net.Addr) (netip.AddrPort, netip.Addr) {
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.AddrPort{}, netip.Addr{} // for example a test's pipe: all of them are one source
	}
	ap = netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	if ap.Addr().Is4() {
		return ap, ap.Addr()
	}
	return ap, netip.PrefixFrom(ap.Addr().WithZone(""), sourcePrefix).Masked().Addr()
}

// admit counts a new connection, which release must follow, or returns the reason why it must be refused.
func (l *limiter) admit(from netip.Addr, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	limits, reservedTokens, reservedSlots := l.limits, 0.0, 0 // what this connection must leave for other sources
	s := l.sources[from]
	if s != nil {
		if !s.arrivals.full(limits.Connections, now) {
			reservedTokens = float64(limits.ConnectionsAll.Burst) / 4
		}
		if s.unknown > 0 {
			reservedSlots = limits.Total / 4
		}
		switch {
		case s.unknown >= limits.PerSource:
			return fmt.Errorf("the source has %d connections, which is its limit", s.unknown)
		case !s.arrivals.take(limits.Connections, 0, now):
			return fmt.Errorf("the source opens more than %g connections per second", limits.Connections.PerSecond)
		}
	}
	switch {
	case limits.Total-l.unknown <= reservedSlots:
		return fmt.Errorf("%d connections are open, and the last %d are reserved for other sources", l.unknown, limits.Total-l.unknown)
	case !l.arrivals.take(limits.ConnectionsAll, reservedTokens, now):
		return fmt.Errorf("all sources together open more than %g connections per second", limits.ConnectionsAll.PerSecond)
	}
	if s == nil { // only now, so that a refused connection adds no row
		if s = l.addLocked(from, maxSources, now); s == nil {
			return fmt.Errorf("%d sources are active at the same time, which is the limit", maxSources)
		}
		s.arrivals.take(limits.Connections, 0, now)
	}
	s.unknown++
	l.unknown++
	return nil
}

// addLocked adds a row, or returns nil if the table has limit rows and none can be removed. It looks for rows to remove at most
// once a second, so that many sources do not make every connection expensive.
func (l *limiter) addLocked(from netip.Addr, limit int, now time.Time) *source {
	if len(l.sources) >= limit && now.Sub(l.swept) >= time.Second {
		l.swept = now
		for a, s := range l.sources {
			if s.idle(l.limits, now) {
				delete(l.sources, a)
			}
		}
	}
	if len(l.sources) >= limit {
		return nil
	}
	s := &source{}
	l.sources[from] = s
	return s
}

func (s *source) idle(l Limits, now time.Time) bool {
	return s.unknown == 0 && s.known == 0 && s.arrivals.full(l.Connections, now) && s.calls.full(l.Calls, now) && s.reports.full(l.Reports, now)
}

// markKnown moves a connection from the unknown to the known peers. It returns false if the source already has twice PerSource
// connections of known peers.
func (l *limiter) markKnown(from netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.sources[from]
	if s == nil || s.known >= 2*l.limits.PerSource {
		return false
	}
	s.unknown, s.known = s.unknown-1, s.known+1
	l.unknown--
	return true
}

// release uncounts a connection that admit has counted.
func (l *limiter) release(from netip.Addr, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.sources[from]
	if s == nil {
		return
	}
	if known {
		s.known--
		return
	}
	s.unknown--
	l.unknown--
}

// allowCall takes a token for a call on the connection of an unknown peer.
func (l *limiter) allowCall(from netip.Addr, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.sources[from]; s == nil || !s.calls.take(l.limits.Calls, 0, now) {
		return fmt.Errorf("the source makes more than %g calls per second", l.limits.Calls.PerSecond)
	}
	return nil
}

// allowReport tells whether a refusal may be reported to Audit, and how many were suppressed since the last report.
func (l *limiter) allowReport(from netip.Addr, now time.Time) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.sources[from]
	if s == nil {
		s = l.addLocked(from, maxSources/2, now) // the other half is reserved for admitted sources
	}
	if s == nil || !s.reports.take(l.limits.Reports, 0, now) || !l.reports.take(l.limits.ReportsAll, 0, now) {
		l.suppressed++
		return 0, false
	}
	suppressed, l.suppressed = l.suppressed, 0
	return suppressed, true
}
