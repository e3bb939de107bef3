// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestEveryFieldIsExplained: the doc comment is the manual.
func TestEveryFieldIsExplained(t *testing.T) {
	t.Parallel()
	known := structTypes()
	if len(known) < 10 {
		t.Fatalf("got %d types, want at least 10", len(known))
	}
	for _, s := range known {
		for _, f := range s.fields {
			if f.doc == "" {
				t.Errorf("%s.%s has no comment", s.name, f.name)
			}
			if t.Failed() {
				continue
			}
			if got := typeName(known, f.goType); got == "object" {
				if _, ok := find(known, f.goType); !ok {
					t.Errorf("%s.%s: no text for type %s", s.name, f.name, f.goType)
				}
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
			"  Roles: control-plane, worker, etcd. A control plane also runs etcd unless some pool has the role etcd.\n\n" +
			"  Default: control-plane and worker for the only pool, worker where there are several\n",
		"spec.pools[3].roles":      "spec.pools.roles: list of text",
		"etcd.flags.log-level":     "spec.components.etcd.flags.log-level: true or false\n\n  A level.\n\n  Default: false\n",
		"etcd.flags.log-leve":      `explain spec.components.etcd.flags.log-leve: no such flag: did you mean "log-level"?`,
		"apiserver.flags.any":      "spec.components.apiserver.flags.any: text, or a list",
		"etcd.flags.a.b":           "has no fields",
		"kubelet.config.a.b":       "spec.components.kubelet.config.a.b: values by name",
		"":                         "Cluster: object",
		"controlPlane":             "spec.controlPlane: object\n\n  controlPlane configures how the control plane runs and how clients reach it.\n\nFields:\n  form ",
		"networking.nodePodPrefix": "  Default: 24\n",
		"pools.rolse":              `did you mean "spec.pools.roles"?`,
		"podCIDR":                  "a Networking has one",
		"zzzzzzzz":                 "the fields are apiVersion, kind, metadata, spec",
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
