// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// second is Go source: it reports whether a test of the fake package runs for the second time.
const second = `package fake

import (
	"os"
	"strings"
	"testing"
)

func second(t *testing.T) bool {
	mark := strings.ReplaceAll(t.Name(), "/", "-")
	_, err := os.Stat(mark)
	if err == nil {
		return true
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return false
}

`

func TestRun(t *testing.T) {
	for name, tt := range map[string]struct {
		source string // after second
		wantOK bool
		want   []string // in the output
		never  string   // not in the output
	}{
		"passes": {
			source: "func TestA(t *testing.T) { t.Log(\"a log\") }",
			wantOK: true, want: []string{"ok  \tfake"}, never: "a log",
		},
		"flaky": {
			source: "func TestA(*testing.T) {}\nfunc TestB(t *testing.T) { t.Run(\"sub\", func(t *testing.T) { if !second(t) { t.Error(\"once\") } }) }",
			wantOK: true, want: []string{"--- FAIL: TestB", "RETRY fake TestB\n", "FLAKY fake.TestB; its first failure:\n", "    ", "once"},
		},
		"fails twice": {
			source: "func TestA(t *testing.T) { t.Error(\"always\") }\nfunc TestB(t *testing.T) { if !second(t) { t.Error(\"once\") } }",
			want:   []string{"RETRY fake TestA TestB", "FAILED TWICE fake.TestA\n", "FLAKY fake.TestB;"},
		},
		"panics once": { // TestB would be lost if TestA alone ran again
			source: "func TestA(t *testing.T) { if !second(t) { panic(\"oh\") } }\nfunc TestB(t *testing.T) { t.Error(\"always\") }",
			want:   []string{"panic: oh", "FLAKY fake.TestA;", "--- FAIL: TestB"},
		},
		"does not build": {
			source: "func TestA(t *testing.T) { undefined() }",
			want:   []string{"undefined: undefined"}, never: "RETRY",
		},
		"exits": {
			source: "func TestMain(m *testing.M) { os.Exit(3) }",
			want:   []string{"RETRY fake"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range map[string]string{"go.mod": "module fake\n\ngo 1.26\n", "fake_test.go": second + tt.source} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			t.Chdir(dir)
			var out strings.Builder
			ok, err := run(t.Context(), &out, []string{"-count=1", "./..."})
			if err != nil || ok != tt.wantOK {
				t.Errorf("got %t, %v, want %t", ok, err, tt.wantOK)
			}
			for _, want := range tt.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("the output lacks %q", want)
				}
			}
			if tt.never != "" && strings.Contains(out.String(), tt.never) {
				t.Errorf("the output contains %q", tt.never)
			}
			if t.Failed() {
				t.Log(out.String())
			}
		})
	}
}

func TestRunNeedsPackages(t *testing.T) {
	t.Parallel()
	if _, err := run(t.Context(), &strings.Builder{}, []string{"-count=1"}); err == nil {
		t.Error("got no error without packages")
	}
}
