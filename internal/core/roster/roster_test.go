// SPDX-License-Identifier: Apache-2.0

package roster

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/slipway-project/slipway/internal/core/admission"
)

func node(name string, i byte) admission.Node {
	return admission.Node{Name: name, Address: netip.AddrFrom4([4]byte{10, 89, 0, i}), PodCIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, i, 0}), 24)}
}

func TestFrom(t *testing.T) {
	t.Parallel()
	leaving, notJoined, mapped := node("b", 2), node("c", 3), node("a", 1)
	leaving.Removing, notJoined.Address = true, netip.Addr{}
	mapped.Address = netip.MustParseAddr("::ffff:10.89.0.1")
	tests := map[string]struct {
		nodes      []admission.Node
		voters     []string
		api, nodeN []string
	}{
		"nothing":                  {nil, []string{"a"}, nil, nil},
		"sorted":                   {[]admission.Node{node("b", 1), node("a", 2)}, []string{"a", "b"}, []string{"10.89.0.1:6443", "10.89.0.2:6443"}, []string{"a", "b"}},
		"not promoted":             {[]admission.Node{node("a", 1), node("b", 2)}, []string{"a"}, []string{"10.89.0.1:6443"}, []string{"a", "b"}},
		"one has not joined":       {[]admission.Node{node("a", 1), notJoined}, []string{"a", "c"}, []string{"10.89.0.1:6443"}, []string{"a"}},
		"one is leaving":           {[]admission.Node{node("a", 1), leaving}, []string{"a", "b"}, []string{"10.89.0.1:6443"}, []string{"a", "b"}},
		"the last one is leaving":  {[]admission.Node{leaving}, []string{"b"}, []string{"10.89.0.2:6443"}, []string{"b"}},
		"voter without a record":   {[]admission.Node{node("a", 1)}, []string{"x"}, nil, []string{"a"}},
		"IPv4-mapped IPv6 address": {[]admission.Node{mapped}, []string{"a"}, []string{"10.89.0.1:6443"}, []string{"a"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := From("id", tt.nodes, tt.voters, nil)
			var api, names []string
			for i, a := range r.API {
				api = append(api, a.String())
				if want := netip.AddrPortFrom(a.Addr(), JoinPort); r.Join[i] != want {
					t.Errorf("got join service %s, want %s", r.Join[i], want)
				}
			}
			for _, n := range r.Nodes {
				names = append(names, n.Name)
			}
			if diff := cmp.Diff(tt.api, api); diff != "" {
				t.Errorf("API (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.nodeN, names); diff != "" {
				t.Errorf("nodes (-want +got):\n%s", diff)
			}
			if r.Usable() != (tt.api != nil) {
				t.Errorf("got usable %v, want %v", r.Usable(), tt.api != nil)
			}
		})
	}
}

// The order of the records and voters makes no difference. Otherwise two control planes would overwrite each other's roster forever.
func TestFromIgnoresOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var nodes []admission.Node
		var voters []string
		for i := range rapid.IntRange(1, 12).Draw(t, "n") {
			n := node(fmt.Sprintf("n%d", i), byte(i+1))
			n.Removing = rapid.Bool().Draw(t, "removing")
			if nodes = append(nodes, n); rapid.Bool().Draw(t, "votes") {
				voters = append(voters, n.Name)
			}
		}
		a := From("id", nodes, voters, []string{"lb"})
		b := From("id", rapid.Permutation(nodes).Draw(t, "nodes"), rapid.Permutation(voters).Draw(t, "voters"), []string{"lb"})
		if !a.Same(b) {
			t.Fatalf("the order changes %+v to %+v", a, b)
		}
		if a.Usable() != (len(voters) > 0) {
			t.Fatalf("%d voters: got usable %v", len(voters), a.Usable())
		}
	})
}
