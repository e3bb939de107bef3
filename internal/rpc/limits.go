// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"math"
	"time"
)

// NoTimeout lets a call last as long as its peer likes. Its rule must know the peer well: once it has passed, the connection no
// longer counts as a stranger's.
const NoTimeout time.Duration = math.MaxInt64

const (
	keepaliveTime    = 20 * time.Second // a silent peer is asked whether it lives
	keepaliveTimeout = 10 * time.Second
	keepaliveFastest = 10 * time.Second // who asks us more often than this is cut off
)

// Rate is a token bucket: Burst at once, PerSecond in the long run.
type Rate struct {
	PerSecond float64
	Burst     int
}

// Limits bounds what strangers can cost. A zero field means its default. A source is an IPv4 address or an IPv6 /64.
type Limits struct {
	Handshake      time.Duration // TLS and the first HTTP/2 frames: 10 s
	HandshakeBytes int           // … which a client may need for them: 16 KiB
	Call           time.Duration // of a method that ServerOptions.Timeout does not name: 30 s
	Age            time.Duration // of a stranger's connection, whatever it does: 60 s, and Call more if it is in a call
	Idle           time.Duration // of a connection without a call: 30 s
	Message        int           // bytes of one message of a client: 1 MiB
	Messages       int           // of a client, in one call that has a timeout: 64
	Headers        int           // bytes of a call's header list: 16 KiB
	Streams        int           // calls at the same time on one connection: 16
	PerSource      int           // connections of strangers from one source: 32
	Total          int           // connections of strangers: 512; the last quarter is for sources that have none
	Connections    Rate          // new connections of one source: 16 a second, 64 at once
	ConnectionsAll Rate          // new connections of all: 200 a second, 512 at once; the last quarter is for newcomers
	Calls          Rate          // calls of one source, on strangers' connections: 32 a second, 128 at once
	Reports        Rate          // refusals of one source that Audit hears of: 16 a second, 128 at once; the others are counted
	ReportsAll     Rate          // … of all: 64 a second, 512 at once
}

func (l Limits) filled() Limits {
	fill(&l.Handshake, 10*time.Second)
	fill(&l.HandshakeBytes, 16<<10)
	fill(&l.Call, 30*time.Second)
	fill(&l.Age, 60*time.Second)
	fill(&l.Idle, 30*time.Second)
	fill(&l.Message, 1<<20)
	fill(&l.Messages, 64)
	fill(&l.Headers, 16<<10)
	fill(&l.Streams, 16)
	fill(&l.PerSource, 32)
	fill(&l.Total, 512)
	fill(&l.Connections, Rate{16, 64})
	fill(&l.ConnectionsAll, Rate{200, 512})
	fill(&l.Calls, Rate{32, 128})
	fill(&l.Reports, Rate{16, 128})
	fill(&l.ReportsAll, Rate{64, 512})
	return l
}

func fill[T comparable](field *T, otherwise T) {
	var zero T
	if *field == zero {
		*field = otherwise
	}
}

// bucket holds the tokens of one Rate. The zero value is full.
type bucket struct {
	used float64 // tokens that are missing
	at   time.Time
}

// take takes one token and leaves at least reserve.
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

func (b *bucket) full(r Rate, now time.Time) bool {
	b.refill(r, now)
	return b.used == 0
}
