// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWithServer(t *testing.T) {
	t.Parallel()
	const before = "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: c2VydmVyOg==\n    server: https://127.0.0.1:6443\n  name: dev\nkind: Config\n"
	for name, tc := range map[string]struct{ in, want string }{
		"in a block":      {before, strings.Replace(before, "https://127.0.0.1:6443", "https://127.0.0.1:40001", 1)},
		"first in a list": {"- server: a\n  x: y", "- server: https://127.0.0.1:40001\n  x: y"},
		"another word":    {"tls-server: a\nserver: b", "tls-server: a\nserver: https://127.0.0.1:40001"},
		"none":            {"kind: Config\n", ""},
	} {
		got, err := withServer(tc.in, "https://127.0.0.1:40001")
		if (err == nil) != (tc.want != "") {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A name that is no name reaches no folder, least of all one above the clusters.
func TestDownRefusesNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", ".", "..", "../..", "a/b", "-x", "A"} {
		root := filepath.Join(t.TempDir(), "slipway")
		kept := filepath.Join(root, "clusters", "dev", "cluster.yaml")
		if err := os.MkdirAll(filepath.Dir(kept), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(kept, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		l := &Launcher{Root: root}
		if err := l.Down(t.Context(), name, true, func(Event) {}); err == nil {
			t.Errorf("%q is taken down", name)
		}
		if _, err := os.Stat(kept); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}
