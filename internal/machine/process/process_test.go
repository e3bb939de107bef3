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
		t.Errorf("a living process: ended %v, %v", ended, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if ended, err := id.Wait(ctx, time.Minute); ended || !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: ended %v, %v", ended, err)
	}
	for name, stranger := range map[string]ID{
		"the pid was given to another": {id.PID, id.Start - 1, id.Boot},
		"the host was booted anew":     {id.PID, id.Start, "another"},
		"no process":                   {},
		"PID 1":                        {PID: 1, Boot: id.Boot},
	} {
		if err := stranger.Signal(unix.SIGKILL); err != nil || stranger.Alive() || !id.Alive() {
			t.Errorf("%s: %v, stranger alive %v, ours alive %v", name, err, stranger.Alive(), id.Alive())
		}
	}
	if err := id.Signal(unix.SIGKILL); err != nil {
		t.Error(err)
	}
	if ended, err := id.Wait(t.Context(), 10*time.Second); !ended || err != nil {
		t.Errorf("killed: ended %v, %v", ended, err)
	}
	if id.Alive() { // nobody has reaped it yet
		t.Error("a zombie passes for alive")
	}
	_ = cmd.Wait()
	if ended, err := id.Wait(t.Context(), time.Second); !ended || err != nil || id.Signal(unix.SIGKILL) != nil {
		t.Errorf("reaped: ended %v, %v", ended, err)
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
		"at work":        {"1 (a) b) S 0 1 1 0 -1 4194560 1", calm, false},
		"exits":          {"1 (a) b) S 0 1 1 0 -1 4194564 1", calm, true},
		"killed":         {"1 (a) S 0 1 1 0 -1 4194560 1", "SigPnd:\t0000000000000100\n", true},
		"killed, shared": {"1 (a) S 0 1 1 0 -1 4194560 1", calm + "ShdPnd:\t0000000000000100\n", true},
		"told to end":    {"1 (a) S 0 1 1 0 -1 4194560 1", "ShdPnd:\t0000000000004000\n", false},
		"unreadable":     {"", "", false},
	} {
		if got := ending(tc.stat, tc.status); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
	self, err := Identify(os.Getpid())
	if err != nil || self.Ending() {
		t.Errorf("this process ends, or %v", err)
	}
}
