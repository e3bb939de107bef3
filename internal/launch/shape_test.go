// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const bare = "apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata:\n  name: dev\n"

func TestShapeSpec(t *testing.T) {
	t.Parallel()
	kept := func(text string) []byte { return []byte(bare + text) }
	for name, test := range map[string]struct {
		kept                   []byte
		controlPlanes, workers int
		want                   string
	}{
		"new: three that do all": {nil, 3, asItIs, bare + `spec:
  pools:
    - name: main
      roles: [control-plane, worker]
      count: 3
`},
		"new: three and two": {nil, 3, 2, bare + `spec:
  pools:
    - name: main
      roles: [control-plane]
      count: 3
    - name: worker
      roles: [worker]
      count: 2
`},
		"new: one and two": {nil, asItIs, 2, bare + `spec:
  pools:
    - name: main
      roles: [control-plane]
      count: 1
    - name: worker
      roles: [worker]
      count: 2
`},
		"the shortest grows": {kept(""), 3, asItIs, bare + `spec:
  pools:
    - name: main
      roles: [control-plane, worker]
      count: 3
`},
		"the shortest gets workers, and its machine stays one": {kept(""), asItIs, 1, bare + `spec:
  pools:
    - name: main
      roles: [control-plane, worker]
      count: 1
    - name: worker
      roles: [worker]
      count: 1
`},
		"counts change, all else stays": {
			kept(`spec:
  # ours
  kubernetesVersion: "1.36" # not 1.4
  pools:
    - name: cp # three
      roles: [control-plane]
      count: 1 # for now
      labels: {a: b}
    - name: big
      count: 2
`), 3, 4, bare + `spec:
  # ours
  kubernetesVersion: "1.36" # not 1.4
  pools:
    - name: cp # three
      roles: [control-plane]
      count: 3 # for now
      labels: {a: b}
    - name: big
      count: 4
`,
		},
		"default roles are spelled before they change": {
			kept("spec:\n  pools:\n    - name: main\n"), 1, 1, bare + `spec:
  pools:
    - name: main
      roles: [control-plane, worker]
    - name: worker
      roles: [worker]
      count: 1
`,
		},
		"nothing to change: byte for byte": {
			kept("spec: {pools: [ {name: main,   count: 3 } ]}\n"), 3, 0, bare + "spec: {pools: [ {name: main,   count: 3 } ]}\n",
		},
		"an empty spec": {kept("spec:\n"), 3, asItIs, bare + `spec:
  pools:
    - name: main
      roles: [control-plane, worker]
      count: 3
`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := shapeSpec(test.kept, "dev", test.controlPlanes, test.workers)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, string(got)); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
			if _, err := Complete("x", got, ""); err != nil {
				t.Errorf("it is no spec: %v", err)
			}
			again, err := shapeSpec(got, "dev", test.controlPlanes, test.workers)
			if err != nil || string(again) != string(got) {
				t.Errorf("the second time it changes again (%v):\n%s", err, again)
			}
		})
	}
}

func TestShapeSpecRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		kept                   string
		controlPlanes, workers int
		want                   string
	}{
		"two":                        {"", 2, 0, "2 control planes: etcd decides by majority"},
		"four":                       {"", 4, 0, "no more of them than 3 do"},
		"none":                       {"", 0, 3, "a cluster has 1, 3 or 5"},
		"less than no worker":        {"", 1, -2, "name a number from 0 on"},
		"several worker pools":       {"spec: {pools: [{name: a, roles: [control-plane]}, {name: b}, {name: c}]}", 1, 2, "2 worker pools"},
		"several control planes":     {"spec: {pools: [{name: a, roles: [control-plane]}, {name: b, roles: [control-plane]}]}", 3, asItIs, "2 control-plane pools"},
		"machines with names":        {"spec: {pools: [{name: a, machines: [{name: x, address: 10.0.0.1}]}]}", 3, asItIs, "its pool a lists its machines"},
		"the last worker":            {"spec: {pools: [{name: a, roles: [control-plane]}, {name: b}]}", asItIs, 0, "slipway node remove"},
		"an alias in place of pools": {"x: &p [{name: a}]\nspec: {pools: *p}", 3, asItIs, "does not edit"},
		"no object":                  {"[]", 3, asItIs, "no YAML object"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := shapeSpec([]byte(test.kept), "dev", test.controlPlanes, test.workers)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
