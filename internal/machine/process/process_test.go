// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestLife(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := Identify(cmd.Process.Pid)
	if err != nil || !id.Alive() {
		t.Fatalf("%+v, %v", id, err)
	}
	if ended, err := id.Wait(t.Context(), time.Millisecond); ended || err != nil {
		t.Errorf("running process: got ended=%v, %v", ended, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if ended, err := id.Wait(ctx, time.Minute); ended || !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got ended=%v, %v", ended, err)
	}
	for name, other := range map[string]ID{
		"pid was reused":    {id.PID, id.Start - 1, id.Boot},
		"host was rebooted": {id.PID, id.Start, "another"},
		"no process":        {},
		"PID 1":             {PID: 1, Boot: id.Boot},
	} {
		if err := other.Signal(unix.SIGKILL); err != nil || other.Alive() || !id.Alive() {
			t.Errorf("%s: got %v, other alive=%v, ours alive=%v", name, err, other.Alive(), id.Alive())
		}
	}
	if err := id.Signal(unix.SIGKILL); err != nil {
		t.Error(err)
	}
	if ended, err := id.Wait(t.Context(), 10*time.Second); !ended || err != nil {
		t.Errorf("killed: got ended=%v, %v", ended, err)
	}
	if id.Alive() { // not reaped yet
		t.Error("a zombie counts as alive")
	}
	_ = cmd.Wait()
	if ended, err := id.Wait(t.Context(), time.Second); !ended || err != nil || id.Signal(unix.SIGKILL) != nil {
		t.Errorf("reaped: got ended=%v, %v", ended, err)
	}
	if self, err := Identify(os.Getpid()); err != nil || !self.Alive() {
		t.Errorf("self: %+v, %v", self, err)
	}
}

func TestEnding(t *testing.T) {
	t.Parallel()
	const calm = "SigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\nSigBlk:\t0000000000000100\n"
	for name, tc := range map[string]struct {
		stat, status string
		want         bool
	}{
		"running":         {"1 (a) b) S 0 1 1 0 -1 4194560 1", calm, false},
		"exiting":         {"1 (a) b) S 0 1 1 0 -1 4194564 1", calm, true},
		"killed":          {"1 (a) S 0 1 1 0 -1 4194560 1", "SigPnd:\t0000000000000100\n", true},
		"killed, shared":  {"1 (a) S 0 1 1 0 -1 4194560 1", calm + "ShdPnd:\t0000000000000100\n", true},
		"SIGTERM pending": {"1 (a) S 0 1 1 0 -1 4194560 1", "ShdPnd:\t0000000000004000\n", false},
		"unreadable":      {"", "", false},
	} {
		if got := ending(tc.stat, tc.status); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
	self, err := Identify(os.Getpid())
	if err != nil || self.Ending() {
		t.Errorf("this process: got ending, or %v", err)
	}
}
