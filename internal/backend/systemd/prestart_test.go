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

// begins calls Begin as systemd does, and tells how long it has held the start back.
func begins(t *testing.T, dir string) (time.Duration, error) {
	t.Helper()
	before := time.Now()
	err := Begin(t.Context(), []string{"-state", dir, "-unit", "etcd"}, files.Fingerprint)
	return time.Since(before), err
}

func noted(t *testing.T, dir string) (b begun) {
	t.Helper()
	if err := durable.Load(begunPath(dir, "etcd"), recordSchema, &b); err != nil {
		t.Fatal(err)
	}
	return b
}

func saveRecord(t *testing.T, dir string, r record) {
	t.Helper()
	if err := durable.Save(recordPath(dir, "etcd"), recordSchema, r); err != nil {
		t.Fatal(err)
	}
}

// The first start is not held back, deaths in a row are, each longer, and a sound life ends the row. Also a start that is
// refused counts, whatever the reason: nothing may turn in a circle without a pause.
func TestBeginHoldsBack(t *testing.T) {
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
					took, err := begins(t, dir)
					if (err == nil) != recorded {
						t.Fatal(err)
					}
					held = append(held, took)
				}
				if held[0] != 0 || held[1] != 0 {
					t.Errorf("the first starts were held back by %v", held[:2])
				}
				if held[4] < 4*held[2] || held[11] < 20*time.Second || held[11] > 30*time.Second {
					t.Errorf("held back by %v: it does not grow, or without an end", held)
				}
				time.Sleep(units.SoundAfter)
				if took, _ := begins(t, dir); took != 0 || noted(t, dir).Deaths != 1 {
					t.Errorf("after a sound life it was held back by %s, %d deaths", took, noted(t, dir).Deaths)
				}
			})
		})
	}
}

// What a process is going to read is looked at before each start, and lost data is told in a note too.
func TestBeginNotes(t *testing.T) {
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
	if _, err := begins(t, dir); err != nil {
		t.Fatal(err)
	}
	first := noted(t, dir)
	write(input, "2")
	if _, err := begins(t, dir); err != nil {
		t.Fatal(err)
	}
	second := noted(t, dir)
	if len(first.Inputs) != 1 || len(second.Inputs) != 1 || first.Inputs[0].Sum == second.Inputs[0].Sum {
		t.Errorf("noted %+v, then %+v", first.Inputs, second.Inputs)
	}
	write(mark, "it has been there")
	_, err := begins(t, dir)
	if err == nil || !strings.Contains(noted(t, dir).Refused, "lost data") {
		t.Errorf("refused with %v, noted %q", err, noted(t, dir).Refused)
	}
}

// Who does not know what a unit is does not know what guards its data either: it is not started, whatever has become of its record.
func TestBeginWithoutARecordRefuses(t *testing.T) {
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
			if _, err := begins(t, dir); err == nil || !strings.Contains(noted(t, dir).Refused, "before the agent says anew") {
				t.Errorf("refused with %v, noted %q", err, noted(t, dir).Refused)
			}
		})
	}
}

// damage spoils both generations of a record.
func damage(t *testing.T, path string) {
	t.Helper()
	for _, p := range []string{path, path + ".prev"} {
		if err := os.WriteFile(p, []byte("slipway-record 1"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
