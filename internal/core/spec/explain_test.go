// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestExplainTableIsCurrent(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "run", "./genexplain", "../../../api/cluster/v1alpha1/cluster.go", "-").Output()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out, explainJSON) {
		t.Error("explain.json is stale: run go generate ./internal/core/spec")
	}
}

// TestEveryFieldIsExplained: the doc comment is the manual.
func TestEveryFieldIsExplained(t *testing.T) {
	t.Parallel()
	var types []structType
	if err := json.Unmarshal(explainJSON, &types); err != nil || len(types) < 10 {
		t.Fatalf("%d types, %v", len(types), err)
	}
	for _, s := range types {
		for _, f := range s.Fields {
			if f.Doc == "" {
				t.Errorf("%s.%s has no comment", s.Name, f.Name)
			}
		}
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	flags := func(component string) map[string]Description {
		if component != "etcd" {
			return nil
		}
		return map[string]Description{"log-level": {Type: "true or false", Text: "A level.", Default: "false"}}
	}
	for path, want := range map[string]string{
		"pools.roles": "spec.pools.roles: list of text\n\n" +
			"  Roles: control-plane, worker, etcd. A control plane runs etcd too unless some pool has the role etcd.\n\n" +
			"  Default: control-plane and worker for the only pool, worker where there are several\n",
		"spec.pools[3].roles":      "spec.pools.roles: list of text",
		"etcd.flags.log-level":     "spec.components.etcd.flags.log-level: true or false\n\n  A level.\n\n  Default: false\n",
		"etcd.flags.log-leve":      `explain spec.components.etcd.flags.log-leve: no such flag: did you mean "log-level"?`,
		"apiserver.flags.any":      "spec.components.apiserver.flags.any: text, or a list",
		"etcd.flags.a.b":           "has no fields",
		"kubelet.config.a.b":       "spec.components.kubelet.config.a.b: values by name",
		"":                         "Cluster: object",
		"controlPlane":             "spec.controlPlane: object\n\n  controlPlane says how the control plane runs and is reached.\n\nFields:\n  form ",
		"networking.nodePodPrefix": "  Default: 24\n",
		"pools.rolse":              `did you mean "spec.pools.roles"?`,
		"podCIDR":                  "a Networking has one",
		"zzzzzzzz":                 "there are apiVersion, kind, metadata, spec",
		"metadata.name.x":          "metadata.name has no fields",
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			d, err := Explain(path, flags)
			got := d.String()
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, want) {
				t.Errorf("Explain(%q):\n%s", path, cmp.Diff(want, got))
			}
		})
	}
}
