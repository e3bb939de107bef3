// SPDX-License-Identifier: Apache-2.0

package initserver

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/netip"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/sleep"
)

// guard tells the right secret from wrong ones. Guessing 160 bits is hopeless; the guard makes it slow as well, and keeps it from
// costing anything: a source that was wrong waits before it is looked at, longer each time. Right callers cannot be locked out:
// the wait has an end, other sources do not wait, and what is remembered and held at once is bounded. When too many wait, the
// next one is looked at without waiting.
type guard struct {
	hash [sha256.Size]byte
	open bool // false: there is no secret, and nobody is right

	mu      sync.Mutex // guards the fields below
	wrong   map[netip.Prefix]failures
	waiting int
}

type failures struct {
	count int
	last  time.Time
}

const (
	firstWait   = 100 * time.Millisecond
	longestWait = 5 * time.Second
	forgetAfter = 10 * time.Minute
	maxSources  = 1024
	maxWaiting  = 64
)

func newGuard(hash [sha256.Size]byte, open bool) *guard {
	return &guard{hash: hash, open: open, wrong: map[netip.Prefix]failures{}}
}

// check is true for the right secret. tries counts how often this source was wrong in a row.
func (g *guard) check(ctx context.Context, source netip.Addr, secret []byte) (ok bool, tries int) {
	from := prefix(source)
	if wait := g.enter(from); wait > 0 {
		err := sleep.For(ctx, wait)
		g.leave()
		if err != nil {
			return false, 0
		}
	}
	sum := sha256.Sum256(secret)
	right := subtle.ConstantTimeCompare(sum[:], g.hash[:]) == 1 && g.open
	g.mu.Lock()
	defer g.mu.Unlock()
	if right {
		delete(g.wrong, from)
		return true, 0
	}
	f := g.wrong[from]
	if f.count == 0 && len(g.wrong) >= maxSources {
		g.forgetOneLocked()
	}
	g.wrong[from] = failures{f.count + 1, time.Now()}
	return false, f.count + 1
}

// enter says how long a caller from there has to wait, and counts it as waiting if it has to.
func (g *guard) enter(from netip.Prefix) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	f, ok := g.wrong[from]
	if !ok || g.waiting >= maxWaiting {
		return 0
	}
	if time.Since(f.last) > forgetAfter {
		delete(g.wrong, from)
		return 0
	}
	g.waiting++
	return min(longestWait, firstWait<<min(f.count-1, 10))
}

func (g *guard) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting--
}

// forgetOneLocked makes room: the source that was wrong least often, then the one that was wrong longest ago.
func (g *guard) forgetOneLocked() {
	var victim netip.Prefix
	for p, f := range g.wrong {
		v, ok := g.wrong[victim]
		if !ok || f.count < v.count || (f.count == v.count && f.last.Before(v.last)) {
			victim = p
		}
	}
	delete(g.wrong, victim)
}

// prefix is the source as one somebody: an address, or the /64 that one IPv6 machine has to itself.
func prefix(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	p, err := a.Prefix(bits)
	if err != nil {
		return netip.Prefix{} // no address: all of those are one source
	}
	return p
}
