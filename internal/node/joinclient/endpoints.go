// SPDX-License-Identifier: Apache-2.0

package joinclient

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"
)

// history records for each join service how the latest attempt ended, and when the next one is due. It is not safe for concurrent
// use.
type history struct {
	random func(n int) int
	latest map[netip.AddrPort]*attempt
}

// attempt is the outcome of the latest attempt at an endpoint.
type attempt struct {
	failures   int       // in a row
	due        time.Time // of the next attempt
	text       string    // the error or refusal
	refused    bool      // text is a refusal
	wrongClock bool      // text compares clocks
}

// Pauses between two attempts at one endpoint.
const (
	firstPause  = 100 * time.Millisecond
	maxPause    = 30 * time.Second
	pauseFactor = 1.6
)

func newHistory(random func(n int) int) *history {
	if random == nil {
		random = rand.IntN
	}
	return &history{random: random, latest: map[netip.AddrPort]*attempt{}}
}

// due returns the endpoints that may be tried now, those with the fewest failures first. Endpoints with equally many are in random
// order, which spreads the load. next is the time until another endpoint is due, or until the caller should read the list of
// endpoints again.
func (h *history) due(endpoints []netip.AddrPort) (now []netip.AddrPort, next time.Duration) {
	endpoints = unique(endpoints)
	for at := range h.latest {
		if !slices.Contains(endpoints, at) {
			delete(h.latest, at)
		}
	}
	next = pollPause
	for _, at := range endpoints {
		wait := time.Duration(0)
		if a := h.latest[at]; a != nil {
			wait = time.Until(a.due)
		}
		if wait <= 0 {
			now = append(now, at)
		} else {
			next = min(next, wait)
		}
	}
	for i := len(now) - 1; i > 0; i-- {
		j := h.random(i + 1)
		now[i], now[j] = now[j], now[i]
	}
	slices.SortStableFunc(now, func(a, b netip.AddrPort) int { return cmp.Compare(h.failures(a), h.failures(b)) })
	return now, next
}

func (h *history) failures(at netip.AddrPort) int {
	if a := h.latest[at]; a != nil {
		return a.failures
	}
	return 0
}

// failed records a failure that may pass by itself.
func (h *history) failed(at netip.AddrPort, text string) {
	n := h.failures(at)
	h.latest[at] = &attempt{failures: n + 1, due: time.Now().Add(h.backoff(firstPause, maxPause, n)), text: text}
}

// refused records a refusal. The next attempt is later than after a failure, because the reply stays the same until the operator
// changes something.
func (h *history) refused(at netip.AddrPort, text string) {
	n := h.failures(at)
	h.latest[at] = &attempt{failures: n + 1, due: time.Now().Add(h.backoff(refusedPause, maxRefused, n)), text: text, refused: true}
}

// wrongClock records that the clocks differ. The pause does not grow, because a clock may be set at any time.
func (h *history) wrongClock(at netip.AddrPort, text string) {
	h.latest[at] = &attempt{failures: h.failures(at) + 1, due: time.Now().Add(h.backoff(clockPause, clockPause, 0)), text: text, wrongClock: true}
}

// untrusted records that the server is not one of the cluster. The pause is long: only another server at this address would help.
func (h *history) untrusted(at netip.AddrPort, text string) {
	h.latest[at] = &attempt{failures: h.failures(at) + 1, due: time.Now().Add(untrustedPause), text: text}
}

// succeeded forgets earlier failures.
func (h *history) succeeded(at netip.AddrPort) { delete(h.latest, at) }

// firstRefusal returns the first endpoint whose latest reply is a refusal.
func (h *history) firstRefusal(endpoints []netip.AddrPort) (at netip.AddrPort, text string, ok bool) {
	for _, at := range endpoints {
		if a := h.latest[at]; a != nil && a.refused {
			return at, a.text, true
		}
	}
	return at, "", false
}

// onlyClocks returns the first clock error if every endpoint has failed, at least one of them because of the clocks, and none has
// refused.
func (h *history) onlyClocks(endpoints []netip.AddrPort) (text string, ok bool) {
	for _, at := range endpoints {
		a := h.latest[at]
		switch {
		case a == nil || a.refused:
			return "", false
		case a.wrongClock && text == "":
			text = a.text
		}
	}
	return text, text != ""
}

// summary lists the latest error of each endpoint, for people.
func (h *history) summary(endpoints []netip.AddrPort) string {
	var text string
	for _, at := range unique(endpoints) {
		if a := h.latest[at]; a != nil {
			if text != "" {
				text += "; "
			}
			text += at.String() + ": " + a.text
		}
	}
	return text
}

// backoff returns a pause that grows with n from first to most, ± 20 %, so that a hundred machines do not return at the same moment.
func (h *history) backoff(first, most time.Duration, n int) time.Duration {
	d := float64(first)
	for ; n > 0 && d < float64(most); n-- {
		d *= pauseFactor
	}
	d = min(d, float64(most))
	return time.Duration(d * (0.8 + 0.4*float64(h.random(1001))/1000))
}

// unique returns the valid endpoints without duplicates, in order.
func unique(endpoints []netip.AddrPort) []netip.AddrPort {
	out := make([]netip.AddrPort, 0, len(endpoints))
	for _, at := range endpoints {
		if at.IsValid() && !slices.Contains(out, at) {
			out = append(out, at)
		}
	}
	return out
}

// closer is what race opens. It stays open after the race, until close.
type closer interface{ close() }

// race opens endpoints until one answers. The next attempt starts when one fails, and at the latest 250 ms after the previous
// start. Everything that opens after the first is closed. race calls failed, one call at a time, for every endpoint that failed
// before it returns.
func race[T closer](ctx context.Context, endpoints []netip.AddrPort, open func(context.Context, netip.AddrPort) (T, error), failed func(netip.AddrPort, error)) (first T, ok bool) {
	type result struct {
		at     netip.AddrPort
		opened T
		err    error
	}
	ctx, cancel := context.WithCancel(ctx)
	results := make(chan result, len(endpoints))
	next, running := 0, 0
	due := true // the next attempt
	timer := time.NewTimer(stagger)
	defer timer.Stop()
	for {
		if due && next < len(endpoints) {
			at := endpoints[next]
			next, running, due = next+1, running+1, false
			timer.Reset(stagger)
			go func() {
				opened, err := open(ctx, at)
				results <- result{at, opened, err}
			}()
		}
		if running == 0 {
			cancel()
			return first, false
		}
		select {
		case <-timer.C:
			due = true
		case r := <-results:
			running--
			if r.err != nil {
				failed(r.at, r.err)
				due = true
				continue
			}
			others := running
			go func() { // the winner has a context of its own, which the end of the race does not end
				cancel()
				for range others {
					if r := <-results; r.err == nil {
						r.opened.close()
					}
				}
			}()
			return r.opened, true
		}
	}
}

// lifetime controls the context of a connection that is opened in a race and may outlive it. It has one time limit at a time.
type lifetime struct {
	cancel context.CancelCauseFunc
	timer  *time.Timer
	cause  func() error // why the context has ended; nil while it has not
	detach func() bool  // the end of the race no longer ends the context
}

// newLifetime returns a context that ends with base, after limit, and, until detach, with the race.
func newLifetime(base, race context.Context, limit time.Duration, what string) (context.Context, *lifetime) {
	ctx, cancel := context.WithCancelCause(base)
	l := &lifetime{
		cancel: cancel, cause: func() error { return context.Cause(ctx) },
		detach: context.AfterFunc(race, func() { cancel(context.Cause(race)) }),
	}
	l.limit(limit, what)
	return ctx, l
}

// limit replaces the time limit; 0 removes it. what says in the error what did not happen in time.
func (l *lifetime) limit(d time.Duration, what string) {
	if l.timer != nil {
		l.timer.Stop()
	}
	if d > 0 {
		l.timer = time.AfterFunc(d, func() { l.cancel(fmt.Errorf("%s within %s", what, d)) })
	}
}

// abort ends the context and closes conn, which may be nil. It returns why the context had ended if that caused err, else err.
func (l *lifetime) abort(base context.Context, conn Conn, err error) error {
	if cause := l.cause(); cause != nil && base.Err() == nil {
		err = cause
	}
	l.end()
	if conn != nil {
		_ = conn.Close() // err says more
	}
	return err
}

// end ends the context.
func (l *lifetime) end() {
	l.limit(0, "")
	l.detach()
	l.cancel(context.Canceled)
}
