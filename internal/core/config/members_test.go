// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/spec"
)

func twoPools(t *testing.T) config.Cluster {
	t.Helper()
	c, problems := config.Complete(spec.Cluster{Name: "dev", Spec: spec.Spec{Pools: []spec.Pool{
		{Name: "cp", Roles: []string{"control-plane"}, Count: 3}, {Name: "w", Roles: []string{"worker"}, Count: 2},
	}}}, release)
	if len(problems) > 0 {
		t.Fatal(lines(problems))
	}
	return c
}

func indices(c config.Cluster) map[string]int {
	out := map[string]int{}
	for _, p := range c.Pools {
		for _, n := range p.Nodes {
			out[n.Name] = n.Index
		}
	}
	return out
}

// A cluster that grows in its first pool must not change the pod CIDRs of the second.
func TestKeeping(t *testing.T) {
	t.Parallel()
	c := twoPools(t)
	before := indices(c)
	kept := c.Keeping(map[string]int{"dev-cp-0": 0, "dev-w-0": 1, "gone": 3})
	want := map[string]int{"dev-cp-0": 0, "dev-cp-1": 2, "dev-cp-2": 4, "dev-w-0": 1, "dev-w-1": 5}
	if diff := cmp.Diff(want, indices(kept)); diff != "" {
		t.Errorf("indices (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, indices(c)); diff != "" {
		t.Errorf("Keeping changed its receiver (-before +after):\n%s", diff)
	}
}

func TestWithNode(t *testing.T) {
	t.Parallel()
	c := twoPools(t)
	address := netip.MustParseAddr("192.0.2.7")
	for name, pool := range map[string]string{"unlisted": "w", "dev-cp-1": "cp", "dev-w-0": "cp"} {
		with, err := c.WithNode(pool, name, address, 200)
		if err != nil {
			t.Fatal(err)
		}
		n, err := config.ForNode(with, name, machine.Facts{Address: netip.MustParseAddr("192.0.2.99")})
		if err != nil {
			t.Fatal(err)
		}
		if n.Pool.Name != pool || n.Facts.Address != address || n.PodCIDR.String() != "10.244.200.0/24" {
			t.Errorf("%s: pool %s, address %s, range %s", name, n.Pool.Name, n.Facts.Address, n.PodCIDR)
		}
	}
	if _, err := c.WithNode("nowhere", "x", address, 1); err == nil {
		t.Error("a pool that is not there was taken")
	}
	if diff := cmp.Diff(indices(twoPools(t)), indices(c)); diff != "" {
		t.Errorf("WithNode changed its receiver:\n%s", diff)
	}
}
