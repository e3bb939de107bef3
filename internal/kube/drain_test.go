// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// drainServer has the cluster's own rights and a node; the test plays its kubelet.
func drainServer(t *testing.T) (super, control *Client) {
	t.Helper()
	s := ownServer(t)
	super = s.client(t, "super-admin")
	if _, err := super.Apply(t.Context(), clusterAddOns(t), nil); err != nil {
		t.Fatal(err)
	}
	create(t, super, schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}, "default", map[string]any{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": map[string]any{"name": "default"}})
	create(t, super, nodes, "", map[string]any{
		"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "n", "labels": map[string]any{roleLabel + "worker": "", roleLabel + "control-plane": ""}},
		"spec": map[string]any{"podCIDR": "10.244.0.0/24", "podCIDRs": []any{"10.244.0.0/24"}},
	})
	return super, s.client(t, "control")
}

// runPod makes a pod that runs on node n.
func runPod(t *testing.T, super *Client, name string, meta map[string]any, phase string) {
	t.Helper()
	m := map[string]any{"name": name, "labels": map[string]any{"app": name}}
	for k, v := range meta {
		m[k] = v
	}
	spec := podSpec()
	spec["nodeName"] = "n"
	create(t, super, pods, "default", map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": m, "spec": spec})
	setStatus(t, super, pods, "default", name, map[string]any{
		"phase": phase, "conditions": []any{map[string]any{"type": "Ready", "status": "True"}},
	})
}

func owned(kind string) map[string]any {
	return map[string]any{"ownerReferences": []any{map[string]any{
		"apiVersion": "apps/v1", "kind": kind, "name": "x", "uid": "0a1b2c3d-0000-0000-0000-000000000000", "controller": true,
	}}}
}

func endPod(t *testing.T, super *Client, name string) {
	t.Helper()
	var now int64
	if err := super.dyn.Resource(pods).Namespace("default").Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Error(err)
	}
}

// The rights of slipway:control are enough to drain and to delete; what belongs to the node stays; a budget is heeded and told.
func TestDrain(t *testing.T) {
	t.Parallel()
	super, control := drainServer(t)
	runPod(t, super, "web", owned("ReplicaSet"), "Running")
	runPod(t, super, "alone", nil, "Running")
	runPod(t, super, "agent", owned("DaemonSet"), "Running")
	runPod(t, super, "finished", owned("Job"), "Succeeded")
	runPod(t, super, "static", map[string]any{"annotations": map[string]any{"kubernetes.io/config.mirror": "x"}}, "Running")
	budget := schema.GroupVersionResource{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"}
	create(t, super, budget, "default", map[string]any{
		"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": map[string]any{"name": "web"},
		"spec": map[string]any{"minAvailable": int64(1), "selector": map[string]any{"matchLabels": map[string]any{"app": "web"}}},
	})
	allow := func(n int64) {
		setStatus(t, super, budget, "default", "web", map[string]any{
			"observedGeneration": int64(1), "disruptionsAllowed": n, "currentHealthy": int64(1), "desiredHealthy": int64(1), "expectedPods": int64(1),
		})
	}
	allow(0)
	var mu sync.Mutex
	var told []string
	say := func(line string) {
		mu.Lock()
		told = append(told, line)
		mu.Unlock()
		switch {
		case line == "pod default/alone is ending":
			go endPod(t, super, "alone")
		case line == "pod default/web is ending":
			go endPod(t, super, "web")
		case strings.HasPrefix(line, "pod default/web does not go yet: "):
			if !strings.Contains(line, "disruption budget") {
				t.Errorf("told %q", line)
			}
			allow(1)
		}
	}
	if err := control.Drain(t.Context(), "n", time.Minute, say); err != nil {
		t.Fatalf("%v; told %q", err, told)
	}
	want := []string{
		"pod default/alone has gone", "pod default/alone has no controller: nobody makes it again elsewhere", "pod default/alone is ending", "pod default/alone is evicted",
		"pod default/web does not go yet", "pod default/web has gone", "pod default/web is ending", "pod default/web is evicted",
	}
	for i, line := range told {
		told[i], _, _ = strings.Cut(line, " yet: ")
		if told[i] != line {
			told[i] += " yet"
		}
	}
	if diff := cmp.Diff(want, slices.Compact(slices.Sorted(slices.Values(told)))); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"agent", "finished", "static"}, podNames(t, super)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}

	wantNode := NodeInfo{
		Name: "n", Roles: []string{"control-plane", "worker"}, PodCIDR: "10.244.0.0/24", Unschedulable: true, Reason: "it has not said yet whether it is Ready",
	}
	listed(t, control, wantNode)
	if err := control.Uncordon(t.Context(), "n"); err != nil {
		t.Fatal(err)
	}
	setStatus(t, super, nodes, "", "n", map[string]any{
		"conditions": []any{map[string]any{"type": "Ready", "status": "True"}}, "nodeInfo": nodeInfo("v1.36.4"),
		"addresses": []any{map[string]any{"type": "InternalIP", "address": "192.0.2.1"}, map[string]any{"type": "Hostname", "address": "n"}},
	})
	wantNode.Unschedulable, wantNode.Ready, wantNode.Reason, wantNode.Version = false, true, "", "v1.36.4"
	wantNode.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	listed(t, control, wantNode)
	for range 2 { // the second time there is nothing to delete
		if err := control.DeleteNode(t.Context(), "n"); err != nil {
			t.Fatal(err)
		}
	}
	if err := control.Drain(t.Context(), "n", time.Minute, say); !errors.Is(err, ErrNoNode) {
		t.Errorf("drain of a node that is not there: %v", err)
	}
}

func nodeInfo(version string) map[string]any {
	out := map[string]any{"kubeletVersion": version}
	for _, field := range []string{"machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion", "kubeProxyVersion", "operatingSystem", "architecture"} {
		out[field] = ""
	}
	return out
}

func listed(t *testing.T, c *Client, want ...NodeInfo) {
	t.Helper()
	got, err := c.ListNodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
}

// A node is alive from when it registers to when whoever watches it says that it was not heard of.
func TestNodeAlive(t *testing.T) {
	t.Parallel()
	c := sharedServer(t).client(t, "super-admin")
	set := func(conditions ...any) {
		o, err := c.dyn.Resource(nodes).Get(t.Context(), "alive", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		o.Object["status"] = map[string]any{"conditions": conditions}
		if _, err := c.dyn.Resource(nodes).UpdateStatus(t.Context(), o, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ready := func(status string) map[string]any { return map[string]any{"type": "Ready", "status": status} }
	node := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "alive"}}}
	for _, step := range []struct {
		what string
		do   func()
		want bool
	}{
		{"no Node", func() {}, false},
		{"registered", func() {
			if _, err := c.dyn.Resource(nodes).Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"ready", func() { set(ready("True")) }, true},
		{"its kubelet says that it is not ready", func() { set(ready("False")) }, true},
		{"not heard of", func() { set(map[string]any{"type": "DiskPressure", "status": "False"}, ready("Unknown")) }, false},
	} {
		step.do()
		if got, err := c.NodeAlive(t.Context(), "alive"); err != nil || got != step.want {
			t.Errorf("%s: alive %t, %v", step.what, got, err)
		}
	}
	if err := c.DeleteNode(t.Context(), "alive"); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if alive, err := c.NodeAlive(ended, "alive"); err == nil || alive {
		t.Errorf("unanswered: alive %t, %v", alive, err)
	}
}

func podNames(t *testing.T, c *Client) (names []string) {
	t.Helper()
	found, err := c.dyn.Resource(pods).Namespace("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range found.Items {
		names = append(names, o.GetName())
	}
	slices.Sort(names)
	return names
}

// A pod that does not end is named when the time is over; another try goes on.
func TestDrainLimit(t *testing.T) {
	t.Parallel()
	super, control := drainServer(t)
	if err := control.Drain(t.Context(), "n", time.Minute, func(string) {}); err != nil {
		t.Errorf("a node without pods: %v", err)
	}
	runPod(t, super, "slow", owned("ReplicaSet"), "Running")
	err := control.Drain(t.Context(), "n", 2*time.Second, func(string) {})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "after 2s there still are pod default/slow (is ending)") {
		t.Errorf("a pod that does not end: %v", err)
	}
	endPod(t, super, "slow")
	if err := control.Drain(t.Context(), "n", time.Minute, func(string) {}); err != nil {
		t.Errorf("when it has ended: %v", err)
	}
}
