// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-project/slipway/internal/backend/files"
	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/durable"
)

// preStart calls PreStart as systemd does, and returns how long it delayed the start.
func preStart(t *testing.T, dir string) (time.Duration, error) {
	t.Helper()
	before := time.Now()
	err := PreStart(t.Context(), []string{"-state", dir, "-unit", "etcd"}, files.Fingerprint)
	return time.Since(before), err
}

func readNote(t *testing.T, dir string) (n startNote) {
	t.Helper()
	if err := durable.Load(startNotePath(dir, "etcd"), recordSchema, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

func saveRecord(t *testing.T, dir string, r record) {
	t.Helper()
	if err := durable.Save(recordPath(dir, "etcd"), recordSchema, r); err != nil {
		t.Fatal(err)
	}
}

// The first start is not delayed, restarts after crashes are, each longer, and a stable run resets the
// delay. Refused starts count too, whatever the reason: every retry loop must have a delay.
func TestPreStartDelays(t *testing.T) {
	t.Parallel()
	for name, recorded := range map[string]bool{"a unit": true, "a unit without a record": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if recorded {
				saveRecord(t, dir, record{Unit: plan.Unit{Name: "etcd", Args: []string{"/etcd"}}})
			}
			synctest.Test(t, func(t *testing.T) {
				var held []time.Duration
				for range 12 {
					took, err := preStart(t, dir)
					if (err == nil) != recorded {
						t.Fatal(err)
					}
					held = append(held, took)
				}
				if held[0] != 0 || held[1] != 0 {
					t.Errorf("the first starts were delayed by %v", held[:2])
				}
				if held[4] < 4*held[2] || held[11] < 20*time.Second || held[11] > 30*time.Second {
					t.Errorf("got delays %v, want them to grow up to a limit", held)
				}
				time.Sleep(units.StableAfter)
				if took, _ := preStart(t, dir); took != 0 || readNote(t, dir).Crashes != 1 {
					t.Errorf("after a stable run: got delay %s, %d crashes", took, readNote(t, dir).Crashes)
				}
			})
		})
	}
}

// The inputs of a process are recorded before each start, and a refusal because of lost data is recorded
// too.
func TestPreStartRecords(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	input, mark := filepath.Join(dir, "input"), filepath.Join(dir, "mark")
	write := func(path, content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(input, "1")
	f := plan.File{Path: input, Mode: 0o600, Content: "1"}
	u := plan.Unit{Name: "etcd", Args: []string{"/etcd"}, Inputs: []plan.Ref{plan.RefOf(f)}, DataGuard: plan.DataGuard{Mark: mark, Data: filepath.Join(dir, "data")}}
	saveRecord(t, dir, record{Unit: u, Inputs: []units.Input{{Entry: entry(f)}}})
	if _, err := preStart(t, dir); err != nil {
		t.Fatal(err)
	}
	first := readNote(t, dir)
	write(input, "2")
	if _, err := preStart(t, dir); err != nil {
		t.Fatal(err)
	}
	second := readNote(t, dir)
	if len(first.Inputs) != 1 || len(second.Inputs) != 1 || first.Inputs[0].Sum == second.Inputs[0].Sum {
		t.Errorf("got inputs %+v, then %+v", first.Inputs, second.Inputs)
	}
	write(mark, "it has been there")
	_, err := preStart(t, dir)
	if err == nil || !strings.Contains(readNote(t, dir).Refused, "lost data") {
		t.Errorf("got error %v, recorded %q", err, readNote(t, dir).Refused)
	}
}

// Without the definition of a unit its data guard is unknown too: the unit is not started, whatever
// happened to its record.
func TestPreStartRefusesWithoutRecord(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, dir string){
		"none":    func(*testing.T, string) {},
		"damaged": func(t *testing.T, dir string) { t.Helper(); damage(t, recordPath(dir, "etcd")) },
		"hollow":  func(t *testing.T, dir string) { t.Helper(); saveRecord(t, dir, record{Unit: plan.Unit{Name: "etcd"}}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			spoil(t, dir)
			if _, err := preStart(t, dir); err == nil || !strings.Contains(readNote(t, dir).Refused, "until the agent has written a new record") {
				t.Errorf("got error %v, recorded %q", err, readNote(t, dir).Refused)
			}
		})
	}
}

// damage damages both generations of a record.
func damage(t *testing.T, path string) {
	t.Helper()
	for _, p := range []string{path, path + ".prev"} {
		if err := os.WriteFile(p, []byte("slipway-record 1"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
