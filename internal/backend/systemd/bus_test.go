// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"

	"github.com/slipway-project/slipway/internal/backend/hosttest"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// The connection breaks while a oneshot runs, and the job result is lost. The outcome is determined
// anyway.
func TestInsideOneshotOutlivesTheConnection(t *testing.T) {
	inside(t)
	for name, tc := range map[string]struct {
		ready  plan.ProbeKind
		code   int
		want   string // part of the error
		either bool   // or no error: systemd may or may not remember
	}{
		"succeeds":           {ready: plan.ProbeFile},
		"fails":              {ready: plan.ProbeFile, code: 7, want: "exited with 7"},
		"fails, no probe":    {code: 7, want: "exited with 7"},
		"succeeds, no probe": {want: "result unknown", either: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			h := b.host(t)
			u := hosttest.RealUnit(b.dir, "job", hosttest.Behaviour{Oneshot: true, HoldReady: true, Exit: true, Code: tc.code, Ready: tc.ready})
			broken, done := make(chan struct{}), make(chan error, 1)
			h.bus.onStart = func() {
				h.bus.now().Close()
				close(broken)
			}
			go func() { done <- h.Do(t.Context(), plan.Step{Verb: plan.Create, Ref: plan.RefOf(u)}, entry(u)) }()
			<-broken
			if err := hosttest.OpenReal(b.dir, u.Name); err != nil {
				t.Fatal(err)
			}
			err := <-done
			if (err == nil) != (tc.want == "") && !tc.either || err != nil && (tc.want == "" || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if n := hosttest.RealStarts(b.dir, u.Name); n != 1 {
				t.Errorf("got %d starts, want 1", n)
			}
			if known := h.units.Get(u.Name).rec.Ran; known != (err == nil) {
				t.Errorf("got ran %t after error %v", known, err)
			}
		})
	}
}

// Every channel is closed at the end of the connection, including one that is added afterwards.
func TestSignalHandlerTerminate(t *testing.T) {
	t.Parallel()
	h := newSignalHandler()
	before, after := make(chan *dbus.Signal, 1), make(chan *dbus.Signal, 1)
	h.AddSignal(before)
	h.DeliverSignal("", "", &dbus.Signal{Name: "said"})
	if s := <-before; s == nil || s.Name != "said" {
		t.Errorf("got signal %+v", s)
	}
	h.Terminate()
	h.AddSignal(after)
	for name, ch := range map[string]chan *dbus.Signal{"before": before, "after": after} {
		if s, open := <-ch; open {
			t.Errorf("channel added %s the end: got %+v, want it closed", name, s)
		}
	}
}
