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
		"nothing asked":      {},
		"first start":        {given: plan.DataGuard{Mark: away, Data: away}},
		"first start, again": {given: plan.DataGuard{Mark: away, Data: data}},
		"data there":         {given: plan.DataGuard{Mark: mark, Data: data}},
		"data lost":          {given: plan.DataGuard{Mark: mark, Data: away}, want: "lost data"},
		"data out of sight":  {given: plan.DataGuard{Mark: mark, Data: filepath.Join(file, "x")}, want: "lost data"},
		"mark out of sight":  {given: plan.DataGuard{Mark: filepath.Join(file, "x"), Data: away}, want: "lost data"},
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

// Data goes only while one file says that it may and none that it counts.
func TestBeginAnew(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		mark, anew, data bool
		asked            bool // the unit knows the file by which it may begin anew
		want             bool // the data is there afterwards
	}{
		"begun, nothing counts":     {asked: true, anew: true, data: true},
		"nothing there":             {asked: true, anew: true},
		"it counts":                 {asked: true, anew: true, mark: true, data: true, want: true},
		"nobody says that it may":   {asked: true, data: true, want: true},
		"said, for another unit":    {anew: true, data: true, want: true},
		"counts, and nobody says":   {asked: true, mark: true, data: true, want: true},
		"counts, for another unit ": {anew: true, mark: true, data: true, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			h := plan.DataGuard{Mark: filepath.Join(dir, "mark"), Data: filepath.Join(dir, "data")}
			anew := filepath.Join(dir, "anew")
			if tc.asked {
				h.FreshStart = anew
			}
			for path, there := range map[string]bool{h.Mark: tc.mark, anew: tc.anew} {
				if there && os.WriteFile(path, nil, 0o600) != nil {
					t.Fatal("write " + path)
				}
			}
			// What a start that was broken off in the middle of this has left goes, too.
			for _, folder := range []string{h.Data, h.Data + ".unfinished"} {
				if tc.data && os.MkdirAll(filepath.Join(folder, "wal"), 0o700) != nil {
					t.Fatal("make " + folder)
				}
			}
			if err := dataguard.Prepare(h); err != nil {
				t.Fatal(err)
			}
			_, err := os.Stat(filepath.Join(h.Data, "wal"))
			if there := err == nil; there != tc.want {
				t.Errorf("data there: %t, want %t", there, tc.want)
			}
		})
	}
}

// TestMain lets the test's own program be the guarded one.
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
		out, err := exec.CommandContext(t.Context(), os.Args[0], dataguard.Command, "--mark="+mark, "--data="+data, "--anew=", "--env-file="+permit,
			"--", "/usr/bin/env").CombinedOutput()
		return string(out), err
	}
	if out, err := guarded(); err != nil || !strings.Contains(out, "WORD_OF_PERMIT=new\n") {
		t.Errorf("the first start: %v, %q", err, out)
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := guarded(); err == nil || !strings.Contains(out, "lost data") {
		t.Errorf("over lost data: %v, %q", err, out)
	}
	if err := os.Remove(permit); err != nil {
		t.Fatal(err)
	}
	if out, err := guarded(); err == nil || !strings.Contains(out, "environment file") {
		t.Errorf("without its permit: %v, %q", err, out)
	}
}
