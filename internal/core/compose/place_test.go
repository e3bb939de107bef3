// SPDX-License-Identifier: Apache-2.0

package compose_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/plan"
)

const withUnits = `spec:
  pools:
  - {name: main, roles: [control-plane], count: 1}
  - {name: w, count: 2, labels: {tier: gold}, machineLabels: {dev-w-1: {disk: ssd}}}
  units:
  - {name: api-side, exec: [/bin/a], global: true, with: [kube-apiserver]}
  - {name: everywhere, exec: [/bin/b], global: true}
  - {name: gold, exec: [/bin/c], global: true, on: {tier: [gold]}}
  - {name: one, exec: [/bin/d], on: {tier: [gold]}}
  - {name: ssd, exec: [/bin/e], on: {disk: [ssd]}}
  - {name: tape, exec: [/bin/f], on: {disk: [tape]}}
`

// TestPlaceIsTheSameFromTheCompletedSpec: operator and control plane decide alike, also when the user's spec has changed since.
func TestPlaceIsTheSameFromTheCompletedSpec(t *testing.T) {
	t.Parallel()
	c, _ := cluster(t, withUnits)
	c = compose.Place(c, map[string][]string{"one": {"dev-w-1"}})
	want := map[string][]string{
		"api-side": {"dev-main-0"}, "everywhere": {"dev-main-0", "dev-w-0", "dev-w-1"}, "gold": {"dev-w-0", "dev-w-1"}, "one": {"dev-w-1"}, "ssd": {"dev-w-1"},
	}
	if diff := cmp.Diff(want, compose.Placed(c)); diff != "" {
		t.Errorf("placement (-want +got):\n%s", diff)
	}
	kept, _, err := compose.Stored(config.Print(c), "dev")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, compose.Placed(kept)); diff != "" {
		t.Errorf("placement from the completed spec (-want +got):\n%s", diff)
	}
	for _, u := range kept.Units {
		if placed := len(u.Placed) > 0; placed != (kept.Unplaced[u.Name] == "") {
			t.Errorf("unit %s is on %v, and why not: %q", u.Name, u.Placed, kept.Unplaced[u.Name])
		}
	}
}

// TestUnlistedMachineGetsGlobalUnits: the spec does not list a machine that joined with a token, so a single unit could run
// twice.
func TestUnlistedMachineGetsGlobalUnits(t *testing.T) {
	t.Parallel()
	c, components := cluster(t, withUnits)
	units := func(r admission.Node) map[string]bool {
		t.Helper()
		_, p, err := compose.Node(compose.Place(c, nil), r, components)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]bool{}
		for _, e := range p.Entries {
			if u, ok := e.Item.(plan.Unit); ok && len(u.Name) > 5 && u.Name[:5] == "user-" {
				got[u.Name] = true
			}
		}
		return got
	}
	at := netip.MustParseAddr("192.0.2.9")
	for name, tc := range map[string]struct {
		record admission.Node
		want   map[string]bool
	}{
		"listed":   {admission.Node{Name: "dev-w-1", Pool: "w", Index: 2, Address: at}, map[string]bool{"user-everywhere": true, "user-gold": true, "user-ssd": true}},
		"unlisted": {admission.Node{Name: "by-token", Pool: "w", Index: 9, Address: at}, map[string]bool{"user-everywhere": true, "user-gold": true}},
	} {
		if diff := cmp.Diff(tc.want, units(tc.record)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
