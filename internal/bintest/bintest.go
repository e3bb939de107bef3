// SPDX-License-Identifier: Apache-2.0

// Package bintest gives tests the real programs of a release, such as kube, etcd, containerd and runc, from the directory in
// SLIPWAY_TEST_BINARIES. It never builds or fetches them. If the variable is not set, the test is skipped, but in CI it fails,
// so that no test is skipped there unnoticed.
//
//	dir := bintest.Dir(t, "kube", "etcd")
package bintest

import (
	"os"
	"path/filepath"
	"testing"
)

// Variable is the environment variable that names the directory.
const Variable = "SLIPWAY_TEST_BINARIES"

// Dir returns the directory if it contains all the programs. Otherwise it skips or fails the test.
func Dir(t testing.TB, programs ...string) string {
	t.Helper()
	dir := os.Getenv(Variable)
	if dir == "" {
		if os.Getenv("CI") != "" {
			t.Fatalf("%s is not set: in CI it must name the directory with %v", Variable, programs)
		}
		t.Skipf("%s is not set: run make components and set it to the directory with %v", Variable, programs)
	}
	for _, name := range programs {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatalf("%s: %v", Variable, err)
		}
		if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
			t.Fatalf("%s: %s is not executable", Variable, filepath.Join(dir, name))
		}
	}
	return dir
}
