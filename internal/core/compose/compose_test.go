// SPDX-License-Identifier: Apache-2.0

package compose_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/planner"
)

const head = "apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: dev}\n"

func have(r catalog.Release) planner.Components {
	out := planner.Components{}
	for _, c := range r.Components {
		for _, b := range c.Binaries {
			out[b.Name] = "sha256:00"
		}
	}
	for _, i := range r.Images() {
		out[i.Name] = "sha256:00"
	}
	return out
}

func cluster(t *testing.T, spec string) (config.Cluster, planner.Components) {
	t.Helper()
	c, release, problems, err := compose.Cluster("spec.yaml", []byte(head+spec), compose.Options{})
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	return c, have(release)
}

func TestClusterSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ spec, version, want string }{
		"a field":                 {head + "spec: {colour: red}\n", "", "spec.colour"},
		"a version":               {head, "1.12", `"1.12"`},
		"a field and a version":   {head + "spec: {colour: red, kubernetesVersion: \"1.12\"}\n", "", "spec.colour"},
		"a flag of the release's": {head + "spec: {components: {apiserver: {flags: {no-such-flag: x}}}}\n", "", "no-such-flag"},
	} {
		_, _, problems, err := compose.Cluster("spec.yaml", []byte(tc.spec), compose.Options{Version: tc.version})
		var text strings.Builder
		if err != nil {
			text.WriteString(err.Error())
		}
		for _, p := range problems {
			text.WriteString(p.String())
		}
		if !strings.Contains(text.String(), tc.want) {
			t.Errorf("%s: %q, want %q", name, text.String(), tc.want)
		}
	}
}

// The operator and a control plane give a machine the same plan: one has the spec, the other the completed spec.
func TestNodeIsTheSameFromTheCompletedSpec(t *testing.T) {
	t.Parallel()
	c, components := cluster(t, "spec:\n  pools:\n  - {name: main, roles: [control-plane], count: 3}\n  - {name: w, labels: {tier: gold}, count: 2}\n")
	kept, _, err := compose.Stored(config.Print(c), "dev")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []admission.Node{
		{Name: "dev-main-1", Pool: "main", Index: 7, Address: netip.MustParseAddr("192.0.2.7")},
		{Name: "dev-w-0", Pool: "w", Index: 3, PodCIDR: netip.MustParsePrefix("10.244.3.0/24"), Address: netip.MustParseAddr("192.0.2.3"), Facts: machine.Facts{CgroupV1: true}},
		{Name: "by-token", Pool: "w", Index: 200, Address: netip.MustParseAddr("192.0.2.9"), Facts: machine.Facts{UpstreamDNS: true}},
	} {
		_, one, err := compose.Node(c, r, components)
		if err != nil {
			t.Fatal(err)
		}
		_, other, err := compose.Node(kept, r, components)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(one, other, cmp.AllowUnexported(plan.Ref{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("%s (-operator +control plane):\n%s", r.Name, diff)
		}
		if one.Node != r.Name {
			t.Errorf("a plan for %s", one.Node)
		}
	}
}

func TestStoredRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"{": "read the stored spec: ", head + "spec: {kubernetesVersion: \"1.12\"}\n": "no release 1.12"} {
		if _, _, err := compose.Stored([]byte(text), "dev"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestNodeRefuses(t *testing.T) {
	t.Parallel()
	c, components := cluster(t, "")
	for name, tc := range map[string]struct {
		record admission.Node
		want   string
	}{
		"a pool that is not there": {admission.Node{Name: "x", Pool: "gone", Address: netip.MustParseAddr("192.0.2.1")}, `has no pool "gone"`},
		"a range that is another's": {
			admission.Node{Name: "x", Pool: "main", Index: 2, PodCIDR: netip.MustParsePrefix("10.244.9.0/24"), Address: netip.MustParseAddr("192.0.2.1")},
			"its record has the pod CIDR 10.244.9.0/24, but the pod CIDR of index 2 is 10.244.2.0/24",
		},
		"no address": {admission.Node{Name: "x", Pool: "main"}, "no address"},
	} {
		if _, _, err := compose.Node(c, tc.record, components); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}
