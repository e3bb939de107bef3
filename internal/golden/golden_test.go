// SPDX-License-Identifier: Apache-2.0

package golden_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/golden"
)

const base = `name: dev # user
pools:
  - name: main
    count: 1
  - name: work
    count: 2
flags:
  v: "0" # default
  w: "1" # default
lines: |
  {
    a
  }
  {
    b
  }
`

func TestDeltaShowsWhatChanges(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ text, want string }{
		"nothing": {base, ""},
		"value, addition and removal": {
			`name: prod # user
pools:
  - name: main
    count: 3
    labels: {}
flags:
  v: "0" # default
  vmodule: x
  w: "1" # default
  z: "1"
lines: |
  {
    a
  }
  {
    b
  }
`,
			`~ name: prod # user
  pools:
    - name: main
~     count: 3
+     labels: {}
-   - name: work
  flags:
    v:
+   vmodule: x
    w:
+   z: "1"
`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, golden.Delta(base, tc.text)); diff != "" {
				t.Errorf("delta (-want +got):\n%s", diff)
			}
		})
	}
}

func TestApplyRestoresTheText(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", base, "name: x\n", base + "last: 1\n", "first: 1\n" + base, base + base,
		"lines: |\n  {\n    c\n  }\n  {\n    b\n  }\n", "lines: |\n  {\n    b\n  }\n", "pools:\n  - name: work\n    count: 2\n  - name: main\n    count: 1\n",
	} {
		delta := golden.Delta(base, text)
		got, err := golden.Apply(base, delta)
		if err != nil {
			t.Fatalf("%v\n%s", err, delta)
		}
		if diff := cmp.Diff(text, got); diff != "" {
			t.Errorf("delta:\n%s\napplied (-want +got):\n%s", delta, diff)
		}
	}
}

func TestApplyRefusesADeltaOfAnotherBase(t *testing.T) {
	t.Parallel()
	_, err := golden.Apply("name: x\n", "- flags:\n")
	if err == nil || err.Error() != `apply the difference: the base has no line "flags:" there` {
		t.Errorf("got error %v", err)
	}
}
