// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/spec"
	"github.com/slipway-project/slipway/internal/golden"
)

func TestForNodeFillsIn(t *testing.T) {
	t.Parallel()
	const doc = `apiVersion: slipway.dev/v1alpha1
kind: Cluster
metadata: {name: dev}
spec:
  pools:
    - {name: cp, roles: [control-plane]}
    - name: w
      count: 2
      labels: {example.org/a: b, zone: z}
      taints: [{key: example.org/only, value: batch, effect: NoExecute}]
  components:
    kubelet:
      flags: {node-labels: "mine=${node.podCIDR}"}
      config: {providerID: "${node.name}", registerWithTaints: [{key: mine, effect: NoSchedule}]}
      env: {WHO: "${node.name}"}
`
	c, problems := complete(t, doc)
	if len(problems) > 0 {
		t.Fatal(lines(problems))
	}
	n, err := config.ForNode(c, "dev-w-1", machine.Facts{Address: netip.MustParseAddr("192.168.7.3"), CgroupV1: true})
	if err != nil {
		t.Fatal(err)
	}
	kubelet := n.Cluster.Kubelet
	for what, x := range map[string]struct{ got, want any }{
		"index":        {n.Index, 2},
		"podCIDR":      {n.PodCIDR, netip.MustParsePrefix("10.244.2.0/24")},
		"pool":         {n.Pool.Name, "w"},
		"name flag":    {kubelet.Flags["hostname-override"], spec.Values{"dev-w-1"}},
		"address flag": {kubelet.Flags["node-ip"], spec.Values{"192.168.7.3"}},
		"labels":       {kubelet.Flags["node-labels"], spec.Values{"example.org/a=b,zone=z", "mine=10.244.2.0/24"}},
		"taints": {kubelet.Config["registerWithTaints"], []any{
			map[string]any{"key": "example.org/only", "value": "batch", "effect": "NoExecute"},
			map[string]any{"key": "mine", "effect": "NoSchedule"},
		}},
		"config":     {kubelet.Config["providerID"], "dev-w-1"},
		"env":        {kubelet.Env["WHO"], "dev-w-1"},
		"cgroup":     {kubelet.Config["failCgroupV1"], false},
		"resolvConf": {kubelet.Config["resolvConf"], config.ResolvConfFile},
		"oom":        {n.Cluster.KubeProxy.Config["oomScoreAdj"], int64(0)},
		"etcd":       {n.Cluster.Etcd.Flags["initial-advertise-peer-urls"], spec.Values{"https://192.168.7.3:2380"}},
	} {
		if diff := cmp.Diff(x.want, x.got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	// The cluster's own configuration is as before.
	if got := c.Kubelet.Flags["hostname-override"][0]; got != "${node.name}" {
		t.Errorf("ForNode changed the cluster: %s", got)
	}
	if c.Kubelet.Config["failCgroupV1"] != true || c.Origins["spec.components.kubelet.config.failCgroupV1"].From != config.Default {
		t.Errorf("ForNode changed the cluster's configuration: %v", c.Kubelet.Config["failCgroupV1"])
	}
}

// TestForNodeLeavesNoPlaceholder over all components, and registers no role label: NodeRestriction would refuse the node.
func TestForNodeLeavesNoPlaceholder(t *testing.T) {
	t.Parallel()
	n := node(t, spec.Cluster{Name: "dev", Spec: spec.Spec{Pools: []spec.Pool{{Name: "a", Roles: []string{"control-plane"}}}}}, machine.Facts{OOMScoreAdj: true})
	text := string(config.Print(n.Cluster))
	if strings.Contains(text, "${") || strings.Contains(text, "node-role.kubernetes.io/control-plane=") {
		t.Errorf("left over:\n%s", text)
	}
	want := []any{map[string]any{"key": spec.TaintControlPlane, "effect": "NoSchedule"}}
	if diff := cmp.Diff(want, n.Cluster.Kubelet.Config["registerWithTaints"]); diff != "" {
		t.Errorf("taints (-want +got):\n%s", diff)
	}
	if got := n.Cluster.Kubelet.Config["oomScoreAdj"]; got != int64(-999) {
		t.Errorf("oomScoreAdj %v", got)
	}
}

func TestForNodeKeepsTheUsersChoice(t *testing.T) {
	t.Parallel()
	n := node(t, spec.Cluster{Name: "dev", Spec: spec.Spec{Components: spec.Components{Kubelet: spec.Component{Config: map[string]any{
		"resolvConf": "/mine", "failCgroupV1": nil, "oomScoreAdj": int64(-5),
	}}}}}, machine.Facts{CgroupV1: true})
	kubelet := n.Cluster.Kubelet.Config
	if _, has := kubelet["failCgroupV1"]; has || kubelet["resolvConf"] != "/mine" || kubelet["oomScoreAdj"] != int64(-5) {
		t.Errorf("facts won over the user: %v %v %v", kubelet["failCgroupV1"], kubelet["resolvConf"], kubelet["oomScoreAdj"])
	}
}

func TestForNodeRefuses(t *testing.T) {
	t.Parallel()
	c, _ := config.Complete(spec.Cluster{Name: "dev"}, release)
	for name, tc := range map[string]struct {
		node, address, want string
	}{
		"another's name":    {"dev-main-1", "192.168.7.1", "has no such machine"},
		"no address":        {"dev-main-0", "", "no address"},
		"IPv6":              {"dev-main-0", "fd00::1", "only IPv4"},
		"a pod's address":   {"dev-main-0", "10.244.3.4", "is in networking.podCIDR"},
		"service addresses": {"dev-main-0", "10.96.3.4", "is in networking.serviceCIDR"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, _ := netip.ParseAddr(tc.address)
			if _, err := config.ForNode(c, tc.node, machine.Facts{Address: a}); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

// TestNodePodCIDRs: pod CIDRs of nodes do not overlap and are part of the cluster's, up to the last one.
func TestNodePodCIDRs(t *testing.T) {
	t.Parallel()
	const nodes = 256
	c, problems := config.Complete(spec.Cluster{Name: "dev", Spec: spec.Spec{Pools: []spec.Pool{{Name: "cp", Roles: []string{"control-plane"}}, {Name: "w", Count: nodes - 1}}}}, release)
	if len(problems) > 0 {
		t.Fatal(lines(problems))
	}
	seen := map[netip.Prefix]bool{}
	for i := range nodes - 1 {
		n, err := config.ForNode(c, fmt.Sprintf("dev-w-%d", i), machine.Facts{Address: netip.MustParseAddr("192.168.7.1")})
		if err != nil {
			t.Fatal(err)
		}
		if seen[n.PodCIDR] || !c.PodCIDR.Overlaps(n.PodCIDR) || n.PodCIDR != n.PodCIDR.Masked() {
			t.Fatalf("node %d has %s", i, n.PodCIDR)
		}
		seen[n.PodCIDR] = true
	}
}

// BenchmarkThousand: a spec of 1 000 machines, every node's configuration included.
func BenchmarkThousand(b *testing.B) {
	doc := []byte(thousand())
	for b.Loop() {
		s, problems := spec.Parse("spec.yaml", doc, spec.Options{})
		c, more := config.Complete(s, release)
		if len(problems)+len(more) > 0 {
			b.Fatal(lines(append(problems, more...)))
		}
		config.Print(c)
		for _, p := range c.Pools {
			for _, n := range p.Nodes {
				if _, err := config.ForNode(c, n.Name, machine.Facts{}); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
}

func thousand() string {
	var doc strings.Builder
	doc.WriteString("apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: dev}\nspec:\n  networking: {podCIDR: 10.128.0.0/12, serviceCIDR: 10.96.0.0/16}\n  pools:\n" +
		"    - {name: cp, roles: [control-plane], machines: [{name: cp, address: 172.20.0.1}]}\n    - name: w\n      machines:\n")
	for i := range 999 {
		fmt.Fprintf(&doc, "        - {name: w%d, address: 172.20.%d.%d}\n", i, 1+i/200, 1+i%200)
	}
	return doc.String()
}

// FuzzComplete: whatever Parse takes, Complete and Print take too, and Print is a fixed point.
func FuzzComplete(f *testing.F) {
	for _, story := range golden.Read(f) {
		f.Add([]byte(golden.Input(story)))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		s, problems := spec.Parse("spec.yaml", doc, spec.Options{})
		if len(problems) > 0 {
			return
		}
		if s.KubernetesVersion != "" && s.KubernetesVersion != release.Minor() {
			return
		}
		c, problems := config.Complete(s, release)
		if len(problems) > 0 {
			return
		}
		first := config.Print(c)
		s, problems = spec.Parse("spec.yaml", first, spec.Options{})
		if len(problems) > 0 {
			t.Fatalf("the completed spec has problems:\n%s\n%s", lines(problems), first)
		}
		c, _ = config.Complete(s, release)
		if diff := cmp.Diff(string(first), string(config.Print(c))); diff != "" {
			t.Errorf("completed twice (-first +second):\n%s", diff)
		}
	})
}
