// SPDX-License-Identifier: Apache-2.0

package bintest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/bintest"
)

// stub records how the test would have ended.
type stub struct {
	testing.TB
	end string
}

func (*stub) Helper()                     {}
func (s *stub) Fatalf(f string, a ...any) { s.end = "fail: " + fmt.Sprintf(f, a...); panic(s) }
func (s *stub) Skipf(f string, a ...any)  { s.end = "skip: " + fmt.Sprintf(f, a...); panic(s) }

func end(programs ...string) string {
	s := &stub{}
	func() {
		defer func() {
			if r := recover(); r != nil && r != any(s) {
				panic(r)
			}
		}()
		s.end = "run: " + bintest.Dir(s, programs...)
	}()
	return s.end
}

func TestDir(t *testing.T) { // not parallel: it sets the environment
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"kube": 0o755, "text": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct{ ci, dir, program, want string }{
		"not set":        {"", "", "kube", "skip: SLIPWAY_TEST_BINARIES is not set: run make components"},
		"not set in CI":  {"true", "", "kube", "fail: SLIPWAY_TEST_BINARIES is not set"},
		"all present":    {"true", dir, "kube", "run: " + dir},
		"one missing":    {"", dir, "etcd", "fail: SLIPWAY_TEST_BINARIES: stat"},
		"not executable": {"", dir, "text", "fail: SLIPWAY_TEST_BINARIES: " + dir + "/text is not executable"},
	} {
		t.Setenv("CI", c.ci)
		t.Setenv(bintest.Variable, c.dir)
		if got := end(c.program); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}
