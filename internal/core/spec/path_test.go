// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPath(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		keys []string
		want string
	}{
		"plain":   {[]string{"spec", "networking"}, "spec.networking"},
		"dotted":  {[]string{"evictionHard", "memory.available"}, `evictionHard["memory.available"]`},
		"after":   {[]string{"a", "b/c", "d"}, `a["b/c"].d`},
		"quotes":  {[]string{"a", `b"].c`}, `a["b\"].c"]`},
		"empty":   {[]string{"a", ""}, `a[""]`},
		"bracket": {[]string{"a", "[0]"}, `a["[0]"]`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, above := "", ""
			for _, k := range tc.keys {
				above, got = got, Child(got, k)
			}
			if got != tc.want {
				t.Errorf("path %s, want %s", got, tc.want)
			}
			if diff := cmp.Diff(tc.keys, Split(got)); diff != "" {
				t.Errorf("Split (-want +got):\n%s", diff)
			}
			if parent(got) != above {
				t.Errorf("parent %s, want %s", parent(got), above)
			}
		})
	}
	if got := parent("spec.pools[3]"); got != "spec.pools" {
		t.Errorf("parent of an element is %s", got)
	}
}

func TestNearest(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"contol-plane": "control-plane", "wroker": "worker", "ETCD": "etcd", "master": "", "": "", "x": "",
	} {
		if got := Nearest(name, []string{"control-plane", "worker", "etcd"}); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", name, got, want)
		}
	}
}
