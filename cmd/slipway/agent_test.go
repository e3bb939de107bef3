// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"testing"

	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/reconcile"

	"github.com/slipway-project/slipway/internal/backend/units"
)

// A unit that dies is not ready until it is back, whatever the loop was just about to say; a oneshot that ends has not died.
func TestTell(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		kind units.EventKind
		want reconcile.Phase
	}{
		"a unit dies":    {units.Exited, reconcile.Failing},
		"a unit hangs":   {units.Unready, reconcile.Failing},
		"a oneshot ends": {units.Done, reconcile.Ready},
	} {
		b := reconcile.NewBoard()
		b.Set(reconcile.Status{Ref: "unit/u", Phase: reconcile.Doing})
		tell(b, units.Event{Unit: "u", Kind: tc.kind})
		b.Set(reconcile.Status{Ref: "unit/u", Phase: reconcile.Ready})
		if all, _ := b.All(); all[0].Phase != tc.want {
			t.Errorf("%s: %s, want %s", name, all[0].Phase, tc.want)
		}
		tell(b, units.Event{Unit: "u", Kind: units.Ready})
		if all, _ := b.All(); all[0].Phase != reconcile.Ready {
			t.Errorf("%s, and is back: %s", name, all[0].Phase)
		}
	}
}

// Only the machine's own end takes the units down: an agent that is told to end, by SIGTERM, leaves them to the next one.
func TestOnlyTheMachinesEndStopsUnits(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		end     func(cancel context.CancelFunc, down chan<- os.Signal)
		asked   bool // what systemd says when it is asked
		stopped bool
	}{
		"SIGTERM":               {func(cancel context.CancelFunc, _ chan<- os.Signal) { cancel() }, false, false},
		"SIGTERM, going down":   {func(cancel context.CancelFunc, _ chan<- os.Signal) { cancel() }, true, true},
		"the machine goes down": {func(_ context.CancelFunc, down chan<- os.Signal) { down <- machine.DownSignal }, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			down := make(chan os.Signal, 1)
			stopped := false
			err := live(ctx, down, func(ctx context.Context) error {
				tc.end(cancel, down)
				<-ctx.Done()
				return nil
			}, func(ctx context.Context) bool {
				return tc.asked && ctx.Err() == nil
			}, func(ctx context.Context) error {
				stopped = true
				return ctx.Err()
			})
			if err != nil || stopped != tc.stopped {
				t.Errorf("units stopped: %t, want %t; error %v", stopped, tc.stopped, err)
			}
		})
	}
}
