// SPDX-License-Identifier: Apache-2.0

package spec_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/spec"
)

const bare = "apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata:\n  name: dev\n"

const unchanged = -1

func shape(controlPlanes, workers int) (s spec.Shape) {
	if controlPlanes != unchanged {
		s.ControlPlanes = &controlPlanes
	}
	if workers != unchanged {
		s.Workers = &workers
	}
	return s
}

func TestWithShape(t *testing.T) {
	t.Parallel()
	stored := func(text string) []byte { return []byte(bare + text) }
	for name, test := range map[string]struct {
		stored                 []byte
		controlPlanes, workers int
		want                   string
	}{
		"new: three that do all": {nil, 3, unchanged, bare + `spec:
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
		"new: one and two": {nil, unchanged, 2, bare + `spec:
  pools:
    - name: main
      roles: [control-plane]
      count: 1
    - name: worker
      roles: [worker]
      count: 2
`},
		"the shortest grows": {stored(""), 3, unchanged, bare + `spec:
  pools:
    - name: main
      roles: [control-plane, worker]
      count: 3
`},
		"the shortest gets workers, and its machine stays one": {stored(""), unchanged, 1, bare + `spec:
  pools:
    - name: main
      roles: [control-plane, worker]
      count: 1
    - name: worker
      roles: [worker]
      count: 1
`},
		"counts change, all else stays": {
			stored(`spec:
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
			stored("spec:\n  pools:\n    - name: main\n"), 1, 1, bare + `spec:
  pools:
    - name: main
      roles: [control-plane, worker]
    - name: worker
      roles: [worker]
      count: 1
`,
		},
		"nothing to change: byte for byte": {
			stored("spec: {pools: [ {name: main,   count: 3 } ]}\n"), 3, 0, bare + "spec: {pools: [ {name: main,   count: 3 } ]}\n",
		},
		"an empty spec": {stored("spec:\n"), 3, unchanged, bare + `spec:
  pools:
    - name: main
      roles: [control-plane, worker]
      count: 3
`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := spec.WithShape(test.stored, "dev", shape(test.controlPlanes, test.workers))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, string(got)); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
			if _, problems := spec.Parse("x", got, options); len(problems) > 0 {
				t.Errorf("the result has problems: %v", problems)
			}
			again, err := spec.WithShape(got, "dev", shape(test.controlPlanes, test.workers))
			if err != nil || string(again) != string(got) {
				t.Errorf("a second call changes it again (%v):\n%s", err, again)
			}
		})
	}
}

func TestWithShapeRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		stored                 string
		controlPlanes, workers int
		want                   string
	}{
		"two":                        {"", 2, 0, "2 control planes: etcd decides by majority"},
		"four":                       {"", 4, 0, "no more failures than 3"},
		"none":                       {"", 0, 3, "a cluster has 1, 3 or 5"},
		"less than no worker":        {"", 1, -2, "choose 0 or more"},
		"several worker pools":       {"spec: {pools: [{name: a, roles: [control-plane]}, {name: b}, {name: c}]}", 1, 2, "2 pools of workers"},
		"several control planes":     {"spec: {pools: [{name: a, roles: [control-plane]}, {name: b, roles: [control-plane]}]}", 3, unchanged, "2 pools of control planes"},
		"machines with names":        {"spec: {pools: [{name: a, machines: [{name: x, address: 10.0.0.1}]}]}", 3, unchanged, "its pool a lists its machines"},
		"the last worker":            {"spec: {pools: [{name: a, roles: [control-plane]}, {name: b}]}", unchanged, 0, "slipway node remove"},
		"an alias in place of pools": {"x: &p [{name: a}]\nspec: {pools: *p}", 3, unchanged, "cannot edit its pools"},
		"no object":                  {"[]", 3, unchanged, "not a YAML object"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := spec.WithShape([]byte(test.stored), "dev", shape(test.controlPlanes, test.workers))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
