// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"os"
	"path/filepath"
	"testing"
)

func TestPackageManager(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if got := PackageManager(root).Name; got != "" {
		t.Errorf("empty root directory: got package manager %q, want none", got)
	}
	for _, tt := range []struct{ file, text, want string }{
		{"usr/lib/os-release", "ID=alpine\n", "apk"},
		{"etc/os-release", "ID=debian\n", "apt"}, // takes precedence
	} {
		path := filepath.Join(root, tt.file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := PackageManager(root).Name; got != tt.want {
			t.Errorf("with %s: got package manager %q, want %q", tt.file, got, tt.want)
		}
	}
}

func TestSharedKernel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for link, want := range map[string]bool{"pid:[4026531836]": false, "pid:[4026532001]": true} {
		at := filepath.Join(dir, link)
		if err := os.Symlink(link, at); err != nil {
			t.Fatal(err)
		}
		if got := sharedKernel(at); got != want {
			t.Errorf("%s: got shared %t, want %t", link, got, want)
		}
	}
	if !sharedKernel(filepath.Join(dir, "none")) {
		t.Error("namespace not readable: got shared false, want true")
	}
}
