// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The table of reasons says what the constants say, and nothing else.
func TestReasonsAreInTheTable(t *testing.T) {
	t.Parallel()
	code, err := os.ReadFile("verdict.go")
	if err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	reasons := regexp.MustCompile(`(?m)^\t\w+ +Reason = "([a-z-]+)" +// (.+)$`).FindAllStringSubmatch(string(code), -1)
	if rows := strings.Count(string(table), "\n| `"); len(reasons) < 20 || rows != len(reasons) {
		t.Errorf("%d constants, %d rows", len(reasons), rows)
	}
	for _, r := range reasons {
		if row := "| `" + r[1] + "` | " + r[2] + " |\n"; !strings.Contains(string(table), row) {
			t.Errorf("README.md has no row %s", row)
		}
	}
}
