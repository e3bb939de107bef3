// SPDX-License-Identifier: Apache-2.0

package dataguard_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/backend/dataguard"
	"github.com/slipway-project/slipway/internal/core/plan"
)

func TestHolds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mark, data, file := filepath.Join(dir, "mark"), filepath.Join(dir, "data"), filepath.Join(dir, "file")
	for _, path := range []string{mark, data, file} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	away := filepath.Join(dir, "away")
	for name, tc := range map[string]struct {
		given plan.DataGuard
		want  string // part of the refusal
	}{
		"no guard":             {},
		"first start":          {given: plan.DataGuard{Mark: away, Data: away}},
		"repeated first start": {given: plan.DataGuard{Mark: away, Data: data}},
		"data exists":          {given: plan.DataGuard{Mark: mark, Data: data}},
		"data lost":            {given: plan.DataGuard{Mark: mark, Data: away}, want: "lost data"},
		"data not readable":    {given: plan.DataGuard{Mark: mark, Data: filepath.Join(file, "x")}, want: "lost data"},
		"mark not readable":    {given: plan.DataGuard{Mark: filepath.Join(file, "x"), Data: away}, want: "lost data"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := dataguard.Prepare(tc.given)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// Data is deleted only while the fresh-start file exists and the mark does not.
func TestBeginAnew(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		mark, fresh, data bool
		named             bool // the guard names the fresh-start file
		want              bool // the data is there afterwards
	}{
		"fresh start":                          {named: true, fresh: true, data: true},
		"no data":                              {named: true, fresh: true},
		"mark exists":                          {named: true, fresh: true, mark: true, data: true, want: true},
		"no fresh start":                       {named: true, data: true, want: true},
		"fresh start of another unit":          {fresh: true, data: true, want: true},
		"mark, no fresh start":                 {named: true, mark: true, data: true, want: true},
		"mark and fresh start of another unit": {fresh: true, mark: true, data: true, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			h := plan.DataGuard{Mark: filepath.Join(dir, "mark"), Data: filepath.Join(dir, "data")}
			fresh := filepath.Join(dir, "fresh")
			if tc.named {
				h.FreshStart = fresh
			}
			for path, there := range map[string]bool{h.Mark: tc.mark, fresh: tc.fresh} {
				if there && os.WriteFile(path, nil, 0o600) != nil {
					t.Fatal("write " + path)
				}
			}
			// Data that an interrupted start has left is removed, too.
			for _, directory := range []string{h.Data, h.Data + ".unfinished"} {
				if tc.data && os.MkdirAll(filepath.Join(directory, "wal"), 0o700) != nil {
					t.Fatal("make " + directory)
				}
			}
			if err := dataguard.Prepare(h); err != nil {
				t.Fatal(err)
			}
			_, err := os.Stat(filepath.Join(h.Data, "wal"))
			if there := err == nil; there != tc.want {
				t.Errorf("got data exists %t, want %t", there, tc.want)
			}
		})
	}
}

// TestMain lets the test binary be the guarded program.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == dataguard.Command {
		if err := dataguard.Guard(os.Args[2:]); err != nil {
			_, _ = os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func TestGuardBecomesTheProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mark, data, permit := filepath.Join(dir, "mark"), filepath.Join(dir, "data"), filepath.Join(dir, "permit")
	if err := os.WriteFile(permit, []byte("WORD_OF_PERMIT=new\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	guarded := func() (string, error) {
		out, err := exec.CommandContext(t.Context(), os.Args[0], dataguard.Command, "--mark="+mark, "--data="+data, "--fresh-start=", "--env-file="+permit,
			"--", "/usr/bin/env").CombinedOutput()
		return string(out), err
	}
	if out, err := guarded(); err != nil || !strings.Contains(out, "WORD_OF_PERMIT=new\n") {
		t.Errorf("first start: got %v, output %q", err, out)
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := guarded(); err == nil || !strings.Contains(out, "lost data") {
		t.Errorf("lost data: got %v, output %q", err, out)
	}
	if err := os.Remove(permit); err != nil {
		t.Fatal(err)
	}
	if out, err := guarded(); err == nil || !strings.Contains(out, "environment file") {
		t.Errorf("without environment file: got %v, output %q", err, out)
	}
}
