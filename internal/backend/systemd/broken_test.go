// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/backend/hosttest"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// The connection breaks while a oneshot runs, and the word of its end with it: that it has ended is found out all the same, and how.
func TestInsideOneshotOutlivesTheConnection(t *testing.T) {
	inside(t)
	for name, tc := range map[string]struct {
		ready  plan.ProbeKind
		code   int
		want   string // part of the error
		either bool   // or no error: systemd may or may not remember
	}{
		"ends well":                {ready: plan.ProbeFile},
		"fails":                    {ready: plan.ProbeFile, code: 7, want: "exited with 7"},
		"fails, nobody to ask":     {code: 7, want: "exited with 7"},
		"ends well, nobody to ask": {want: "nobody knows how it has ended", either: true},
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
				t.Errorf("%d starts, want 1", n)
			}
			if known := h.units.Get(u.Name).rec.Ran; known != (err == nil) {
				t.Errorf("noted as run: %t, after %v", known, err)
			}
		})
	}
}
