// SPDX-License-Identifier: Apache-2.0

package lock

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/durable"
)

var errDisk = errors.New("the disk says no")

// transition is a step that changes something, and the way to where it begins.
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

type dir map[string][]byte // names in the journal's folder

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
	folder := t.TempDir()
	for n, b := range d {
		if err := os.WriteFile(filepath.Join(folder, n), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(folder, "lock")
}

// A crash between any two system calls of a step leaves the state before or the state after it, and the next step works.
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
					t.Errorf("%s: %s, want %s", at, s, want)
					continue
				}
				if at == "renamed" {
					continue
				}
				if err := tr.step(again); err != nil || again.State().Phase != tr.to {
					t.Errorf("%s: the step again: %v: %s", at, err, again.State())
				}
			}
		})
	}
}

// What a bad disk leaves is an error in clear words or a state that nothing is stronger than, and never a free machine.
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
		"nonsense":          func(p string) error { return durable.Save(p, schema, State{Phase: "lost"}) },
		"a claim of nobody": func(p string) error { return durable.Save(p, schema, State{Phase: Claimed}) },
	}
	believed := map[string]bool{"reset": true} // what came before the reset: committed
	ways := starts()
	delete(ways, "free") // has no journal
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
				case lost: // both generations are gone: this is a machine without a journal
					if err != nil || l.State().Phase != Free {
						t.Errorf("%v, %v", l, err)
					}
				case believed[start] && !strings.HasPrefix(name, "non") && !strings.HasPrefix(name, "a "):
					if err != nil || l.State().Phase != Committed {
						t.Errorf("%v, %v; want the commit before", l, err)
					}
				case !errors.Is(err, durable.ErrDamaged) || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "remove "+path):
					t.Errorf("%v, %v; want an error that says what to do", l, err)
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
		t.Errorf("%v", err)
	}
}

// A journal that is damaged while the agent runs stops every step, and changes nothing that this process knows.
func TestDamageWhileOpen(t *testing.T) {
	t.Parallel()
	l, path := at(t, starts()["claimed (init r1)"])
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{"release": l.Release("r1"), "commit": l.Commit("r1", "c1", "n1"), "claim": l.Claim(Init, "r1")} {
		if !errors.Is(err, durable.ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, _ := os.ReadFile(path); string(got) != "x" || l.State().Phase != Claimed {
		t.Errorf("%q, %s", got, l.State())
	}
}
