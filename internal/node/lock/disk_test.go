// SPDX-License-Identifier: Apache-2.0

package lock

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/durable"
)

var errDisk = errors.New("disk error")

// transition is a step that changes the state, and the steps that lead to its start.
type transition struct {
	way  []func(*Lock) error
	step func(*Lock) error
	to   Phase
}

func transitions() map[string]transition {
	s := starts()
	claim := func(l *Lock) error { return l.Claim(Init, "r1") }
	return map[string]transition{
		"first claim": {s["free"], claim, Claimed},
		"next claim":  {s["released"], claim, Claimed},
		"commit":      {s["claimed (init r1)"], func(l *Lock) error { return l.Commit("r1", "c1", "n1") }, Committed},
		"release":     {s["claimed (init r1)"], func(l *Lock) error { return l.Release("r1") }, Free},
		"reset":       {s["committed"], func(l *Lock) error { return l.Reset("c1") }, Free},
	}
}

type dir map[string][]byte // the files in the directory of the lock, by name

func snapshot(t *testing.T, path string) dir {
	t.Helper()
	d := dir{}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(filepath.Dir(path), e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		d[e.Name()] = data
	}
	return d
}

func (d dir) with(name string, data []byte) dir {
	out := dir{}
	for n, b := range d {
		out[n] = b
	}
	if out[name] = data; data == nil {
		delete(out, name)
	}
	return out
}

func (d dir) restore(t *testing.T) string {
	t.Helper()
	directory := t.TempDir()
	for n, b := range d {
		if err := os.WriteFile(filepath.Join(directory, n), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(directory, "lock")
}

// TestCrashInAStep: a crash between any two system calls of a step leaves the old or the new state, and the step can be repeated.
func TestCrashInAStep(t *testing.T) {
	t.Parallel()
	for name, tr := range transitions() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, path := at(t, tr.way)
			old, before := l.State(), snapshot(t, path)
			if err := tr.step(l); err != nil {
				t.Fatal(err)
			}
			written, tmp := snapshot(t, path)["lock"], ".lock.1-0.tmp"
			crashes := map[string]dir{
				"nothing yet":     before,
				"empty temporary": before.with(tmp, []byte{}),
				"half temporary":  before.with(tmp, written[:len(written)/2]),
				"whole temporary": before.with(tmp, written),
				"before flock":    before.with("lock.flock", nil),
				"renamed":         before.with("lock", written).with("lock.prev", before["lock"]),
			}
			if before["lock"] != nil {
				crashes["previous linked"] = before.with(tmp, written).with("lock.prev.tmp", before["lock"])
				crashes["previous renamed"] = before.with(tmp, written).with("lock.prev", before["lock"])
			}
			for at, d := range crashes {
				again := open(t, d.restore(t))
				want := old.Phase
				if at == "renamed" {
					want = tr.to
				}
				if s := again.State(); s.Phase != want {
					t.Errorf("%s: got %s, want %s", at, s, want)
					continue
				}
				if at == "renamed" {
					continue
				}
				if err := tr.step(again); err != nil || again.State().Phase != tr.to {
					t.Errorf("%s: repeat the step: got error %v, state %s", at, err, again.State())
				}
			}
		})
	}
}

// TestDamage: damage by a bad disk is reported as an error, or the previous commit is used. The machine never becomes free.
func TestDamage(t *testing.T) {
	t.Parallel()
	harm := map[string]func(path string) error{
		"torn":    func(p string) error { return os.Truncate(p, 40) },
		"empty":   func(p string) error { return os.Truncate(p, 0) },
		"missing": os.Remove,
		"zeroed": func(p string) error {
			info, err := os.Stat(p)
			if err != nil {
				return err
			}
			return os.WriteFile(p, make([]byte, info.Size()), 0o600)
		},
		"inconsistent":            func(p string) error { return durable.Save(p, schema, State{Phase: "lost"}) },
		"a claim without request": func(p string) error { return durable.Save(p, schema, State{Phase: Claimed}) },
	}
	believed := map[string]bool{"reset": true} // the previous generation is committed
	ways := starts()
	delete(ways, "free") // there is no file
	for start, way := range ways {
		for name, do := range harm {
			t.Run(start+", "+name, func(t *testing.T) {
				t.Parallel()
				_, path := at(t, way)
				if err := do(path); err != nil {
					t.Fatal(err)
				}
				l, err := Open(path)
				lost := name == "missing" && strings.HasPrefix(start, "claimed")
				switch {
				case lost: // both generations are missing, as on a new machine
					if err != nil || l.State().Phase != Free {
						t.Errorf("got %v, %v, want free", l, err)
					}
				case believed[start] && !strings.HasPrefix(name, "inc") && !strings.HasPrefix(name, "a "):
					if err != nil || l.State().Phase != Committed {
						t.Errorf("got %v, %v, want the previous commit", l, err)
					}
				case !errors.Is(err, durable.ErrDamaged) || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "remove "+path):
					t.Errorf("got %v, %v, want an error that says what to do", l, err)
				}
			})
		}
	}
}

func TestNewerSchema(t *testing.T) {
	t.Parallel()
	_, path := at(t, starts()["committed"])
	if err := durable.Save(path, schema+1, State{Phase: Free}); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); !errors.Is(err, durable.ErrSchema) || !strings.Contains(err.Error(), "newer") {
		t.Errorf("got %v", err)
	}
}

// TestDamageWhileOpen: damage while the lock is open makes every step fail and leaves the state in memory unchanged.
func TestDamageWhileOpen(t *testing.T) {
	t.Parallel()
	l, path := at(t, starts()["claimed (init r1)"])
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{"release": l.Release("r1"), "commit": l.Commit("r1", "c1", "n1"), "claim": l.Claim(Init, "r1")} {
		if !errors.Is(err, durable.ErrDamaged) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if got, _ := os.ReadFile(path); string(got) != "x" || l.State().Phase != Claimed {
		t.Errorf("got file %q, lock %s", got, l.State())
	}
}

// TestWriteFails: a write fails before the rename, after it, and after it so that the old state cannot be restored.
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
					t.Fatalf("got %v", err)
				}
				if s := l.State(); s != before {
					t.Errorf("got lock %s, want %s", s, before)
				}
				if s := open(t, path).State(); !tt.doubt && s != before {
					t.Errorf("got %s on the disk, want %s", s, before)
				}
				if tt.doubt {
					if err := tr.step(l); !errors.Is(err, ErrInDoubt) {
						t.Errorf("while the disk fails: got %v, want ErrInDoubt", err)
					}
				}
				l.save = save
				if err := tr.step(l); err != nil && trName != "reset" { // the reset is on the disk, so there is nothing to reset
					t.Errorf("repeat the step on a working disk: got %v", err)
				}
				if l.State().Phase != tr.to || open(t, path).State() != l.State() {
					t.Errorf("got lock %s, %s on the disk", l.State(), open(t, path).State())
				}
			})
		}
	}
}

// TestRealDisk: on a full disk and in a read-only directory, a step fails and changes nothing. Afterwards it works again.
func TestRealDisk(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	if err := unix.Mount("tmpfs", directory, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=32k"); err != nil {
		t.Skipf("mount a small disk: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(directory, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(directory, "lock")
	l := open(t, path)
	if err := l.Claim(Init, "r1"); err != nil {
		t.Fatal(err)
	}
	before := l.State()
	fill := filepath.Join(directory, "fill")
	refused := func(what string, want error) {
		t.Helper()
		for name, err := range map[string]error{"commit": l.Commit("r1", "c1", "n1"), "release": l.Release("r1")} {
			if !errors.Is(err, want) || !strings.Contains(err.Error(), "claimed (init r1)") && !strings.Contains(err.Error(), "no change") {
				t.Errorf("%s, %s: %v", what, name, err)
			}
		}
		if l.State() != before || open(t, path).State() != before {
			t.Errorf("%s: got lock %s, %s on the disk", what, l.State(), open(t, path).State())
		}
	}
	if err := os.WriteFile(fill, bytes.Repeat([]byte("x"), 64<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the disk: %v", err)
	}
	refused("full disk", unix.ENOSPC)
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", directory, "", unix.MS_REMOUNT|unix.MS_RDONLY, "size=32k"); err != nil {
		t.Fatal(err)
	}
	refused("read-only disk", unix.EROFS)
	if err := unix.Mount("", directory, "", unix.MS_REMOUNT, "size=32k"); err != nil {
		t.Fatal(err)
	}
	if err := l.Commit("r1", "c1", "n1"); err != nil || open(t, path).State() != l.State() {
		t.Errorf("got error %v, %s on the disk", err, open(t, path).State())
	}
}

const childPath = "SLIPWAY_LOCK_CHILD"

// TestOneWinnerAmongProcesses: of several processes with the same file, one claims the machine.
func TestOneWinnerAmongProcesses(t *testing.T) {
	t.Parallel()
	if path := os.Getenv(childPath); path != "" {
		claimAsChild(path)
	}
	path := filepath.Join(t.TempDir(), "lock")
	const children = 6
	var commands []*exec.Cmd
	var outputs [children]bytes.Buffer
	flock, held := filepath.Join(filepath.Dir(path), "lock.flock"), (*os.File)(nil)
	held, err := os.OpenFile(flock, os.O_CREATE|os.O_RDWR, 0o600) // blocks all processes until they have started
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
		t.Errorf("got winners %q, lock %s", won, s)
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
