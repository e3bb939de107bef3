// SPDX-License-Identifier: Apache-2.0

package operate

import (
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
		got, err := WithServer(tc.in, "https://127.0.0.1:40001")
		if (err == nil) != (tc.want != "") {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
