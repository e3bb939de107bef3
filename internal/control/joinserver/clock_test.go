// SPDX-License-Identifier: Apache-2.0

package joinserver_test

import (
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/control/joinserver"
	"github.com/slipway-project/slipway/internal/node/joinclient"
	"github.com/slipway-project/slipway/internal/rpc"
	"github.com/slipway-project/slipway/internal/testkit"
)

// A machine whose clock is wrong says so with both clocks and how far they are apart, and is in soon after it was set.
func TestWrongClock(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		off    time.Duration
		server time.Duration // the service's own clock, which the answer is about
		says   string
	}{
		"behind":                     {off: -2 * 365 * 24 * time.Hour, says: "this machine is 730 days behind it"},
		"ahead":                      {off: 10 * 365 * 24 * time.Hour, says: "this machine is 3650 days ahead of it"},
		"both, the service far more": {off: 2 * time.Hour, server: 40 * 24 * time.Hour, says: "this machine is 40 days behind it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, rpc.Limits{})
			w.skew.Store(int64(tt.server))
			m := worker(w)
			c := m.config()
			var off atomic.Int64
			off.Store(int64(tt.off))
			c.Now = func() time.Time { return time.Now().Add(time.Duration(off.Load())) }
			done := make(chan error, 1)
			go func() {
				_, err := joinclient.Join(t.Context(), c)
				done <- err
			}()
			testkit.Eventually(t, "what it says of the clocks", func() bool { return strings.Contains(m.said().Detail, tt.says) })
			s := m.said()
			if s.What != "clocks that agree" || !strings.Contains(s.Detail, "the clock of this machine says "+c.Now().UTC().Format("2006-01-02T")) ||
				!strings.Contains(s.Detail, "that of "+w.endpoint.String()+" says "+w.now().UTC().Format("2006-01-02T")) || !strings.Contains(s.Who, "set the clock") {
				t.Errorf("it says %+v", s)
			}
			if n := w.signed.Load(); n != 0 {
				t.Errorf("%d certificates were signed", n)
			}
			off.Store(0)
			set := time.Now()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if took := time.Since(set); took > 10*time.Second {
				t.Errorf("it was let in %s after its clock was set", took)
			}
		})
	}
}

// A control plane that can sign nothing by its own clock says so to a machine that has proven its right.
func TestServiceWithWrongClock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rpc.Limits{})
	w.skew.Store(int64(-24 * time.Hour))
	w.wrongClock.Store(true)
	m := worker(w)
	done := make(chan error, 1)
	go func() {
		_, err := joinclient.Join(t.Context(), m.config())
		done <- err
	}()
	testkit.Eventually(t, "what it says of the clocks", func() bool { return strings.Contains(m.said().Detail, "this machine is 24h0m0s ahead of it") })
	testkit.Eventually(t, "the audit", func() bool { return w.count(joinserver.WrongClock) > 0 })
	w.wrongClock.Store(false)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// The time is told to a stranger; another cluster's service is not asked for it.
func TestClockOfWhom(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rpc.Limits{})
	m, other := stranger(w), newWorld(t, rpc.Limits{})
	got, err := joinclient.TLSClock(w.pin, m.key, func() netip.Addr { return m.address })(t.Context(), w.endpoint)
	if err != nil || time.Since(got).Abs() > time.Minute {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := joinclient.TLSClock(w.pin, m.key, func() netip.Addr { return m.address })(t.Context(), other.endpoint); !rpc.IsUntrusted(err) {
		t.Errorf("another cluster's: %v", err)
	}
}
