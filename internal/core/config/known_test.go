// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/spec"
	"github.com/slipway-project/slipway/internal/golden"
)

// TestOwnFlagsAreKnown: what the tables of this package set is known to the release, current, and of the right kind. The
// catalogue's own tests hold its table against the real programs.
func TestOwnFlagsAreKnown(t *testing.T) {
	t.Parallel()
	c, rules := rich(t), known(t).Flags
	for program, x := range map[string]config.Component{
		"etcd": c.Etcd, "kube-apiserver": c.APIServer, "kube-controller-manager": c.ControllerManager, "kube-scheduler": c.Scheduler,
		"kubelet": c.Kubelet, "kube-proxy": c.KubeProxy, "containerd": c.Containerd,
	} {
		if len(x.Flags) == 0 {
			t.Errorf("%s has no flags", program)
		}
		for name, f := range x.Flags {
			rule, ok := rules[program][name]
			switch {
			case !ok:
				t.Errorf("%s does not know --%s", program, name)
			case rule.Deprecated || rule.Exits:
				t.Errorf("%s --%s: %+v", program, name, rule)
			case rule.Single && len(f.Values) != 1:
				t.Errorf("%s --%s takes one value, has %q", program, name, f.Values)
			case rule.Bool && f.Values[0] != "true" && f.Values[0] != "false":
				t.Errorf("%s --%s=%s: not a boolean", program, name, f.Values[0])
			}
		}
	}
}

// TestGatesGoWhereTheyAreKnown: a program ends on a gate that it does not know.
func TestGatesGoWhereTheyAreKnown(t *testing.T) {
	t.Parallel()
	r := release
	r.Gates = map[string]config.GateRule{
		"All": {}, "Nodes": {Programs: []string{"kubelet", "kube-proxy"}}, "Server": {Programs: []string{"kube-apiserver"}},
	}
	s := spec.Cluster{Name: "dev", Gates: map[string]bool{"All": true, "Nodes": false, "Server": true}}
	s.KubeProxy.Config = map[string]any{"featureGates": map[string]any{"Server": true}}
	c, problems := config.Complete(s, r)
	got := map[string]string{}
	for name, x := range map[string]config.Component{
		"apiserver": c.APIServer, "controllerManager": c.ControllerManager, "scheduler": c.Scheduler, "etcd": c.Etcd, "containerd": c.Containerd,
	} {
		if v := x.Flags["feature-gates"].Values; name != "etcd" && v != nil {
			got[name] = v[0]
		}
	}
	for name, x := range map[string]config.Component{"kubelet": c.Kubelet, "kubeProxy": c.KubeProxy} {
		gates, _ := x.Config["featureGates"].(map[string]any)
		got[name] = fmt.Sprint(slices.Sorted(maps.Keys(gates)))
	}
	want := map[string]string{
		"apiserver": "All=true,Server=true", "controllerManager": "All=true", "scheduler": "All=true",
		"kubelet": "[All Nodes]", "kubeProxy": "[All Nodes Server]",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if len(problems) != 1 || !strings.Contains(problems[0].String(), "kube-proxy does not know the feature gate Server: known to kube-apiserver") {
		t.Errorf("problems: %s", lines(problems))
	}
	if len(c.Gates) != 3 {
		t.Errorf("the cluster has lost gates: %v", c.Gates)
	}
}

// TestWithoutTables: a release of which nothing is known refuses nothing.
func TestWithoutTables(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"unknown-flags", "unknown-gates"} {
		doc := golden.Input(golden.Read(t)[name])
		if _, problems := completeFor(t, doc, release); len(problems) > 0 {
			t.Errorf("%s: %s", name, lines(problems))
		}
		if _, problems := completeFor(t, doc, known(t)); len(problems) < 10 {
			t.Errorf("%s: only %d problems with tables", name, len(problems))
		}
	}
}

// TestManyUnknownFlags: each slip costs a search for what was meant, so a hundred are enough.
func TestManyUnknownFlags(t *testing.T) {
	t.Parallel()
	s := spec.Cluster{Name: "dev"}
	s.APIServer.Flags, s.Gates = map[string][]string{}, map[string]bool{}
	for i := range 5_000 {
		s.APIServer.Flags[fmt.Sprintf("audit-webhook-batch-throttle-enable-%d", i)] = []string{"x"}
		s.Gates[fmt.Sprintf("AllowInsecureKubeletCertificateSigningRequests%d", i)] = true
	}
	_, problems := config.Complete(s, known(t))
	if last := problems[len(problems)-1].String(); len(problems) != 101 || !strings.Contains(last, "there may be more") {
		t.Errorf("%d problems, the last: %s", len(problems), last)
	}
}
