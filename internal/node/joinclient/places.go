// SPDX-License-Identifier: Apache-2.0

package joinclient

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"
)

// places remembers of each join service how it did, and when it may be asked again.
type places struct {
	random func(n int) int
	known  map[netip.AddrPort]*place
}

type place struct {
	failures int
	due      time.Time
	heard    string // what was wrong last
	refused  bool   // … which was a no
	untimely bool   // … which was a clock
}

// Pauses between two tries of one endpoint.
const (
	pauseFirst  = 100 * time.Millisecond
	pauseMost   = 30 * time.Second
	pauseFactor = 1.6
)

func newPlaces(random func(n int) int) *places {
	if random == nil {
		random = rand.IntN
	}
	return &places{random: random, known: map[netip.AddrPort]*place{}}
}

// due are the endpoints that may be asked now, those first that have failed least; among equals chance decides, which spreads the
// load. If there is none, soon is when the next one may be asked.
func (p *places) due(endpoints []netip.AddrPort) (now []netip.AddrPort, soon time.Duration) {
	endpoints = unique(endpoints)
	for at := range p.known {
		if !slices.Contains(endpoints, at) {
			delete(p.known, at)
		}
	}
	soon = lookPause
	for _, at := range endpoints {
		wait := time.Duration(0)
		if known := p.known[at]; known != nil {
			wait = time.Until(known.due)
		}
		if wait <= 0 {
			now = append(now, at)
		} else {
			soon = min(soon, wait)
		}
	}
	for i := len(now) - 1; i > 0; i-- {
		j := p.random(i + 1)
		now[i], now[j] = now[j], now[i]
	}
	slices.SortStableFunc(now, func(a, b netip.AddrPort) int { return cmp.Compare(p.failures(a), p.failures(b)) })
	return now, soon
}

func (p *places) failures(at netip.AddrPort) int {
	if known := p.known[at]; known != nil {
		return known.failures
	}
	return 0
}

// failed puts the next try off, each time longer.
func (p *places) failed(at netip.AddrPort, why string) {
	n := p.failures(at)
	p.known[at] = &place{failures: n + 1, due: time.Now().Add(p.pause(pauseFirst, pauseMost, n)), heard: why}
}

// refused puts it off for longer: the same question gets the same answer until somebody mends something.
func (p *places) refused(at netip.AddrPort, why string) {
	n := p.failures(at)
	p.known[at] = &place{failures: n + 1, due: time.Now().Add(p.pause(refusedPause, refusedMost, n)), heard: why, refused: true}
}

// no is the first refusal among what the endpoints have said last.
func (p *places) no(endpoints []netip.AddrPort) (at netip.AddrPort, why string, ok bool) {
	for _, at := range endpoints {
		if known := p.known[at]; known != nil && known.refused {
			return at, known.heard, true
		}
	}
	return at, "", false
}

// untimely puts it off for a moment: nobody tells when a clock is set.
func (p *places) untimely(at netip.AddrPort, what string) {
	p.known[at] = &place{failures: p.failures(at) + 1, due: time.Now().Add(p.pause(clockPause, clockPause, 0)), heard: what, untimely: true}
}

// clock is what is wrong with the clocks, if nothing else is wrong with any endpoint.
func (p *places) clock(endpoints []netip.AddrPort) (what string, ok bool) {
	for _, at := range endpoints {
		known := p.known[at]
		switch {
		case known == nil || known.refused:
			return "", false
		case known.untimely && what == "":
			what = known.heard
		}
	}
	return what, what != ""
}

// mistrusted puts it off for long: only another server at the same address could be the right one.
func (p *places) mistrusted(at netip.AddrPort, why string) {
	p.known[at] = &place{failures: p.failures(at) + 1, due: time.Now().Add(mistrustPause), heard: why}
}

func (p *places) good(at netip.AddrPort) { delete(p.known, at) }

// heard is what each endpoint said last, for people.
func (p *places) heard(endpoints []netip.AddrPort) string {
	var text string
	for _, at := range unique(endpoints) {
		if known := p.known[at]; known != nil {
			if text != "" {
				text += "; "
			}
			text += at.String() + ": " + known.heard
		}
	}
	return text
}

// pause grows with n from first to most, ± 20 %, so that a hundred machines do not come back at the same moment.
func (p *places) pause(first, most time.Duration, n int) time.Duration {
	d := float64(first)
	for ; n > 0 && d < float64(most); n-- {
		d *= pauseFactor
	}
	d = min(d, float64(most))
	return time.Duration(d * (0.8 + 0.4*float64(p.random(1001))/1000))
}

func unique(endpoints []netip.AddrPort) []netip.AddrPort {
	out := make([]netip.AddrPort, 0, len(endpoints))
	for _, at := range endpoints {
		if at.IsValid() && !slices.Contains(out, at) {
			out = append(out, at)
		}
	}
	return out
}
