// SPDX-License-Identifier: Apache-2.0

package initserver

import (
	"context"
	"crypto/sha256"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Wrong guesses wait longer and longer, each source for itself; the right secret is let in from everywhere.
func TestGuardDelays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(sha256.Sum256([]byte("right")), true)
		bad, good := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
		want := []time.Duration{0, 100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond, 1600 * time.Millisecond, 3200 * time.Millisecond, longestWait, longestWait}
		for i, wait := range want {
			before := time.Now()
			if ok, tries := g.check(t.Context(), bad, []byte("wrong")); ok || tries != i+1 || time.Since(before) != wait {
				t.Errorf("guess %d: %v, %d, after %s, want %s", i, ok, tries, time.Since(before), wait)
			}
		}
		took := func(from netip.Addr) time.Duration {
			before := time.Now()
			if ok, _ := g.check(t.Context(), from, []byte("right")); !ok {
				t.Errorf("%s: refused", from)
			}
			return time.Since(before)
		}
		if d := took(good); d != 0 {
			t.Errorf("another source waits %s", d)
		}
		if d := took(bad); d != longestWait {
			t.Errorf("the right secret after wrong ones waits %s", d)
		}
		if d := took(bad); d != 0 {
			t.Errorf("it waits %s the next time", d)
		}
		g.check(t.Context(), bad, nil)
		time.Sleep(forgetAfter + 1)
		if d := took(bad); d != 0 {
			t.Errorf("after a long time it waits %s", d)
		}
	})
}

// Thousands of guessers cost a bounded memory and cannot lock out the right caller, not even one at their own address.
func TestGuardIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(sha256.Sum256([]byte("right")), true)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		from := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }
		for i := range 4000 {
			all.Go(func() {
				for range 3 {
					g.check(ctx, from(i), []byte("wrong"))
				}
			})
		}
		synctest.Wait()
		g.mu.Lock()
		if len(g.wrong) > maxSources || g.waiting > maxWaiting {
			t.Errorf("%d sources, %d waiting", len(g.wrong), g.waiting)
		}
		g.mu.Unlock()
		for i := range 4000 {
			before := time.Now()
			if ok, _ := g.check(t.Context(), from(i), []byte("right")); !ok || time.Since(before) > longestWait {
				t.Errorf("%d: %v after %s", i, ok, time.Since(before))
			}
		}
		cancel()
		all.Wait()
		if g.waiting != 0 {
			t.Errorf("%d waiting", g.waiting)
		}
		if ok, _ := g.check(t.Context(), from(1), nil); ok {
			t.Error("nothing is right")
		}
	})
}

func TestPrefix(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"192.0.2.1": "192.0.2.1/32", "::ffff:192.0.2.1": "192.0.2.1/32", "2001:db8::1": "2001:db8::/64", "fe80::1%eth0": "fe80::/64"} {
		if got := prefix(netip.MustParseAddr(in)); got.String() != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
	if prefix(netip.Addr{}).IsValid() {
		t.Error("no address has a prefix")
	}
}
