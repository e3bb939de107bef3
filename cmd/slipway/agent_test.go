// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"testing"

	"github.com/slipway-project/slipway/internal/machine"
)

// Only the machine's own end takes the units down: an agent that is told to end, by SIGTERM, leaves them to the next one.
func TestOnlyTheMachinesEndStopsUnits(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		end     func(cancel context.CancelFunc, down chan<- os.Signal)
		stopped bool
	}{
		"SIGTERM":               {func(cancel context.CancelFunc, _ chan<- os.Signal) { cancel() }, false},
		"the machine goes down": {func(_ context.CancelFunc, down chan<- os.Signal) { down <- machine.DownSignal }, true},
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
