// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/slipway-project/slipway/internal/machine"
)

// Units are stopped only when the machine goes down. An agent that gets SIGTERM leaves them running for the next agent.
func TestUnitsStopOnlyWithTheMachine(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		end     func(cancel context.CancelFunc, down chan<- os.Signal)
		asked   bool // systemd's answer
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
		"another PID 1":                   {want: "supervise"},
		"systemd":                         {socket: true, want: "systemd"},
		"systemd, supervised units":       {socket: true, record: true, want: "supervise"},
		"another PID 1, supervised units": {record: true, want: "supervise"},
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
				t.Errorf("got %s, want %s", have, tc.want)
			}
		})
	}
}

func TestBackendFlag(t *testing.T) {
	t.Parallel()
	if b, err := backendFlag(nil); b != "auto" || err != nil {
		t.Errorf("without arguments: got %q, %v", b, err)
	}
	if b, err := backendFlag([]string{"--backend", "systemd"}); b != "systemd" || err != nil {
		t.Errorf("got %q, %v, want systemd", b, err)
	}
	if _, err := backendFlag([]string{"systemd"}); err == nil {
		t.Error("unknown argument: got no error")
	}
}
