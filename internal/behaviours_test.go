// SPDX-License-Identifier: Apache-2.0

package internal_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// TestBehavioursNameTests: every test and story that docs/behaviours.md names exists.
func TestBehavioursNameTests(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/behaviours.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string][]string{} // by directory
	for _, s := range sources(t) {
		dir := filepath.Dir(s.path)
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(s.text, -1) {
			tests[dir] = append(tests[dir], m[1])
		}
	}
	named := regexp.MustCompile("`([a-z0-9/]+)\\.(Test\\w+)`").FindAllStringSubmatch(string(text), -1)
	if len(named) < 50 {
		t.Fatalf("got %d names of tests in docs/behaviours.md, want at least 50: has its format changed?", len(named))
	}
	for _, m := range named {
		if !slices.Contains(tests["internal/"+m[1]], m[2]) && !slices.Contains(tests["test/"+m[1]], m[2]) {
			t.Errorf("docs/behaviours.md names the test %s in %s, which does not exist", m[2], m[1])
		}
	}
	for _, m := range regexp.MustCompile("`([a-z0-9-]+\\.story)`").FindAllStringSubmatch(string(text), -1) {
		if _, err := os.Stat(filepath.Join("sim", "testdata", m[1])); err != nil {
			t.Errorf("docs/behaviours.md names a story that does not exist: %v", err)
		}
	}
}
