// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/spec"
	"github.com/slipway-project/slipway/internal/golden"
)

// TestOwnFlagsAreKnown: what the tables of this package set is known to the release, current, and of the right kind. The
// catalogue's own tests hold its table against the real programs.
func TestOwnFlagsAreKnown(t *testing.T) {
	t.Parallel()
	c := rich(t)
	for program, x := range map[string]spec.Component{
		"etcd": c.Etcd, "kube-apiserver": c.APIServer, "kube-controller-manager": c.ControllerManager, "kube-scheduler": c.Scheduler,
		"kubelet": c.Kubelet, "kube-proxy": c.KubeProxy, "containerd": c.Containerd,
	} {
		if len(x.Flags) == 0 {
			t.Errorf("%s has no flags", program)
		}
		for name, f := range x.Flags {
			known, ok := release.Flag(program, name)
			switch {
			case !ok:
				t.Errorf("%s does not know --%s", program, name)
			case known.Deprecated || known.Exits:
				t.Errorf("%s --%s: %+v", program, name, known)
			case known.Kind == catalog.OneFlag && len(f) != 1:
				t.Errorf("%s --%s takes one value, has %q", program, name, f)
			case known.Kind == catalog.BoolFlag && f[0] != "true" && f[0] != "false":
				t.Errorf("%s --%s=%s: not a boolean", program, name, f[0])
			}
		}
	}
}

// TestGatesGoWhereTheyAreKnown: a program ends on a gate that it does not know.
// TestGatesReachEveryProgram: spec.featureGates go to each Kubernetes program and to no other.
func TestGatesReachEveryProgram(t *testing.T) {
	t.Parallel()
	c, problems := config.Complete(spec.Cluster{Name: "dev", Spec: spec.Spec{FeatureGates: map[string]bool{"AllAlpha": false}}}, release)
	if len(problems) > 0 {
		t.Fatal(lines(problems))
	}
	got := map[string]bool{}
	for name, x := range map[string]spec.Component{
		"apiserver": c.APIServer, "controllerManager": c.ControllerManager, "scheduler": c.Scheduler, "containerd": c.Containerd,
		"kubelet": c.Kubelet, "kubeProxy": c.KubeProxy,
	} {
		gates, _ := x.Config["featureGates"].(map[string]any)
		flag := x.Flags["feature-gates"]
		got[name] = gates["AllAlpha"] == false || len(flag) == 1 && flag[0] == "AllAlpha=false"
	}
	want := map[string]bool{"apiserver": true, "controllerManager": true, "scheduler": true, "kubelet": true, "kubeProxy": true, "containerd": false}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("programs that have the gate (-want +got):\n%s", diff)
	}
}

func TestWithoutTables(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"unknown-flags", "unknown-gates"} {
		doc := strings.ReplaceAll(golden.Input(golden.Read(t)[name]), release.Minor(), withoutTables().Minor())
		if _, problems := completeFor(t, doc, withoutTables()); len(problems) > 0 {
			t.Errorf("%s: %s", name, lines(problems))
		}
		if _, problems := completeFor(t, golden.Input(golden.Read(t)[name]), release); len(problems) < 10 {
			t.Errorf("%s: only %d problems with tables", name, len(problems))
		}
	}
}

// TestManyUnknownFlags: each slip costs a search for what was meant, so a hundred are enough.
func TestManyUnknownFlags(t *testing.T) {
	t.Parallel()
	s := spec.Cluster{Name: "dev"}
	s.Components.APIServer.Flags, s.FeatureGates = map[string]spec.Values{}, map[string]bool{}
	for i := range 5_000 {
		s.Components.APIServer.Flags[fmt.Sprintf("audit-webhook-batch-throttle-enable-%d", i)] = spec.Values{"x"}
		s.FeatureGates[fmt.Sprintf("AllowInsecureKubeletCertificateSigningRequests%d", i)] = true
	}
	_, problems := config.Complete(s, release)
	if last := problems[len(problems)-1].String(); len(problems) != 101 || !strings.Contains(last, "there may be more") {
		t.Errorf("%d problems, the last: %s", len(problems), last)
	}
}
