// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/reconcile"
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

func TestChooseBackend(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		socket, record bool
		want           string
	}{
		"another PID 1":                        {want: "supervise"},
		"systemd":                              {socket: true, want: "systemd"},
		"systemd, and units of our own":        {socket: true, record: true, want: "supervise"},
		"another PID 1, and units of our own ": {record: true, want: "supervise"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			socket := filepath.Join(dir, "private")
			for path, there := range map[string]bool{socket: tc.socket, filepath.Join(dir, "etcd.state"): tc.record} {
				if there {
					if err := os.WriteFile(path, nil, 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			if have := choose(dir, socket); have != tc.want {
				t.Errorf("chose %s, want %s", have, tc.want)
			}
		})
	}
}

func TestBackendFlag(t *testing.T) {
	t.Parallel()
	if b, err := backendFlag(nil); b != "auto" || err != nil {
		t.Errorf("nothing said: %q %v", b, err)
	}
	if b, err := backendFlag([]string{"--backend", "systemd"}); b != "systemd" || err != nil {
		t.Errorf("said: %q %v", b, err)
	}
	if _, err := backendFlag([]string{"systemd"}); err == nil {
		t.Error("an argument that nobody knows is dropped")
	}
}
