// SPDX-License-Identifier: Apache-2.0

// Package bintest tells tests where the real programs of a release are: kube, etcd, containerd, runc and the others, each by
// its name in the folder SLIPWAY_TEST_BINARIES. It never builds or fetches one. Without the folder a test is skipped, and
// under CI it fails: what nobody runs proves nothing.
//
//	dir := bintest.Dir(t, "kube", "etcd")
package bintest

import (
	"os"
	"path/filepath"
	"testing"
)

// Variable names the folder.
const Variable = "SLIPWAY_TEST_BINARIES"

// Dir is the folder, in which all the programs were found.
func Dir(t testing.TB, programs ...string) string {
	t.Helper()
	dir := os.Getenv(Variable)
	if dir == "" {
		if os.Getenv("CI") != "" {
			t.Fatalf("%s is not set: under CI it must name the folder with %v", Variable, programs)
		}
		t.Skipf("%s names no folder with %v: make components fills one", Variable, programs)
	}
	for _, name := range programs {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatalf("%s: %v", Variable, err)
		}
		if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
			t.Fatalf("%s: %s is no program", Variable, filepath.Join(dir, name))
		}
	}
	return dir
}
