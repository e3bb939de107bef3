// SPDX-License-Identifier: Apache-2.0

package lock

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/durable"
)

// The ways in which a write goes wrong: before the new name is there, after it, and after it without a way back.
func TestWriteFails(t *testing.T) {
	t.Parallel()
	save := durable.Save
	tests := map[string]struct {
		save  func(call int) func(string, int, any) error
		doubt bool
	}{
		"before the rename": {func(int) func(string, int, any) error {
			return func(string, int, any) error { return errDisk }
		}, false},
		"after the rename, undone": {func(call int) func(string, int, any) error {
			return func(p string, s int, v any) error {
				if err := save(p, s, v); err != nil || call > 0 {
					return err
				}
				return errDisk
			}
		}, false},
		"after the rename, for good": {func(call int) func(string, int, any) error {
			return func(p string, s int, v any) error {
				if call > 0 {
					return errDisk
				}
				return errors.Join(save(p, s, v), errDisk)
			}
		}, true},
	}
	for trName, tr := range transitions() {
		for name, tt := range tests {
			t.Run(trName+", "+name, func(t *testing.T) {
				t.Parallel()
				l, path := at(t, tr.way)
				before, calls := l.State(), 0
				l.save = func(p string, s int, v any) error { calls++; return tt.save(calls-1)(p, s, v) }
				err := tr.step(l)
				if !errors.Is(err, errDisk) || errors.Is(err, ErrInDoubt) != tt.doubt {
					t.Fatalf("%v", err)
				}
				if s := l.State(); s != before {
					t.Errorf("the lock is %s, want %s", s, before)
				}
				if s := open(t, path).State(); !tt.doubt && s != before {
					t.Errorf("the disk says %s, want %s", s, before)
				}
				if tt.doubt {
					if err := tr.step(l); !errors.Is(err, ErrInDoubt) {
						t.Errorf("the disk is still away: %v", err)
					}
				}
				l.save = save
				if err := tr.step(l); err != nil && trName != "reset" { // the reset was on the disk: settled, there is nothing to reset
					t.Errorf("the step again, on a good disk: %v", err)
				}
				if l.State().Phase != tr.to || open(t, path).State() != l.State() {
					t.Errorf("the lock is %s, the disk says %s", l.State(), open(t, path).State())
				}
			})
		}
	}
}

// A real full disk and a real read-only folder: nothing changes, the error says so, and it works when there is room again.
func TestRealDisk(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	if err := unix.Mount("tmpfs", folder, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=32k"); err != nil {
		t.Skipf("mount a small disk: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(folder, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(folder, "lock")
	l := open(t, path)
	if err := l.Claim(Init, "r1"); err != nil {
		t.Fatal(err)
	}
	before := l.State()
	fill := filepath.Join(folder, "fill")
	refused := func(what string, want error) {
		t.Helper()
		for name, err := range map[string]error{"commit": l.Commit("r1", "c1", "n1"), "release": l.Release("r1")} {
			if !errors.Is(err, want) || !strings.Contains(err.Error(), "claimed (init r1)") && !strings.Contains(err.Error(), "nothing has changed") {
				t.Errorf("%s, %s: %v", what, name, err)
			}
		}
		if l.State() != before || open(t, path).State() != before {
			t.Errorf("%s: the lock is %s, the disk says %s", what, l.State(), open(t, path).State())
		}
	}
	if err := os.WriteFile(fill, bytes.Repeat([]byte("x"), 64<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the disk: %v", err)
	}
	refused("full disk", unix.ENOSPC)
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", folder, "", unix.MS_REMOUNT|unix.MS_RDONLY, "size=32k"); err != nil {
		t.Fatal(err)
	}
	refused("read-only disk", unix.EROFS)
	if err := unix.Mount("", folder, "", unix.MS_REMOUNT, "size=32k"); err != nil {
		t.Fatal(err)
	}
	if err := l.Commit("r1", "c1", "n1"); err != nil || open(t, path).State() != l.State() {
		t.Errorf("%v, the disk says %s", err, open(t, path).State())
	}
}

const childPath = "SLIPWAY_LOCK_CHILD"

// Several processes with the same journal: one gets the machine.
func TestOneWinnerAmongProcesses(t *testing.T) {
	t.Parallel()
	if path := os.Getenv(childPath); path != "" {
		claimAsChild(path)
	}
	path := filepath.Join(t.TempDir(), "lock")
	const children = 6
	var commands []*exec.Cmd
	var outputs [children]bytes.Buffer
	gate, held := filepath.Join(filepath.Dir(path), "lock.flock"), (*os.File)(nil)
	held, err := os.OpenFile(gate, os.O_CREATE|os.O_RDWR, 0o600) // all of them stand at the door before it opens
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	for i := range children {
		c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestOneWinnerAmongProcesses$")
		c.Env = append(os.Environ(), childPath+"="+path, fmt.Sprintf("SLIPWAY_LOCK_ID=r%d", i))
		c.Stdout = &outputs[i]
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		commands = append(commands, c)
	}
	held.Close()
	won := ""
	for i, c := range commands {
		if err := c.Wait(); err != nil {
			t.Errorf("child %d: %v: %s", i, err, &outputs[i])
		}
		if strings.Contains(outputs[i].String(), "won") {
			won += fmt.Sprintf("r%d ", i)
		}
	}
	if s := open(t, path).State(); won != s.ID+" " {
		t.Errorf("winners: %q, and the journal says %s", won, s)
	}
}

func claimAsChild(path string) {
	l, err := Open(path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var taken *TakenError
	switch err := l.Claim(Init, os.Getenv("SLIPWAY_LOCK_ID")); {
	case err == nil:
		fmt.Println("won")
	case !errors.As(err, &taken):
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
