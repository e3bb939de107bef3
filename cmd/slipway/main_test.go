// SPDX-License-Identifier: Apache-2.0

//go:build !failpoints

package main

import (
	"log/slog"
	"slices"
	"testing"
)

// The hidden commands are run by these names from other processes, and by other versions of Slipway.
func TestHiddenCommands(t *testing.T) {
	t.Parallel()
	var names []string
	for _, c := range hidden(slog.New(slog.DiscardHandler), "/proc/self/exe") {
		names = append(names, c.Name())
		if !c.Hidden || !c.DisableFlagParsing || c.RunE == nil {
			t.Errorf("%s: want a hidden command that does not parse flags", c.Name())
		}
	}
	if want := []string{"agent", "machine-init", "proxy-serve", "node-task", "machine-report", "stream", "api-balancer"}; !slices.Equal(names, want) {
		t.Errorf("got commands %v, want %v", names, want)
	}
}

// A released program has no failpoints.
func TestNoFailpoint(t *testing.T) {
	t.Parallel()
	if crash := newFailpoints(); crash.pass() != nil || crash.afterStep() != nil {
		t.Error("got a failpoint in a released program, want none")
	}
}

func TestStateRoot(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		uid             int
		home, xdg, want string
	}{
		"root":           {0, "/root", "/root/state", "/var/lib/slipway"},
		"a user":         {1000, "/home/ann", "", "/home/ann/.local/state/slipway"},
		"XDG_STATE_HOME": {1000, "/home/ann", "/data", "/data/slipway"},
		"a relative XDG": {1000, "/home/ann", "data", "/home/ann/.local/state/slipway"},
		"no home":        {1000, "", "", "/var/lib/slipway"},
	} {
		if got := stateRoot(tc.uid, tc.home, tc.xdg); got != tc.want {
			t.Errorf("%s: got %s, want %s", name, got, tc.want)
		}
	}
}
