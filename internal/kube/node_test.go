// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// KeepNode writes the record, also after the Node was deleted and created again, and reports when the Node is not ready. It only
// needs the rights of slipway:control.
func TestKeepNode(t *testing.T) {
	t.Parallel()
	s := ownServer(t)
	super := s.client(t, "super-admin")
	if _, err := super.Apply(t.Context(), clusterAddOns(t), nil); err != nil {
		t.Fatal(err)
	}
	record := Record{
		Name: "a", PodCIDR: netip.MustParsePrefix("10.244.0.0/24"), Labels: map[string]string{"node-role.kubernetes.io/control-plane": ""},
		Taints: []Taint{{Key: "node-role.kubernetes.io/control-plane", Effect: "NoSchedule"}},
	}
	var writes atomic.Int32
	keep := func(r Record) waiter {
		c := s.client(t, "control")
		return startWait(t, func(ctx context.Context, say func(string)) error {
			return c.KeepNode(ctx, r, say, func(string) { writes.Add(1) })
		})
	}
	w := keep(record)
	w.until("node a does not exist")
	registered := map[string]any{
		"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "a", "labels": map[string]any{"kubernetes.io/hostname": "a"}},
		"spec": map[string]any{"taints": []any{map[string]any{"key": "example.test/mine", "value": "x", "effect": "NoExecute"}}},
	}
	ready := func(status string) {
		setStatus(t, super, nodes, "", "a", map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": status, "reason": "Test"}}})
	}
	for i := range 2 { // the second time after the Node was deleted
		create(t, s.client(t, "node-a"), nodes, "", registered)
		w.until("its condition Ready is not known yet")
		ready("True")
		w.until("")
		wantRecord(t, super)
		if i == 1 {
			keep(record).until("") // a later call also reports that the Node is as it should be
		}
		ready("Unknown")
		w.until("Test")
		if err := super.dyn.Resource(nodes).Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.until("node a does not exist")
	}
	if n := writes.Load(); n != 2 {
		t.Errorf("got %d writes of the record, want 2", n)
	}
	create(t, s.client(t, "node-a"), nodes, "", registered)
	w.until("its condition Ready is not known yet")
	record.PodCIDR = netip.MustParsePrefix("10.244.9.0/24")
	keep(record).until("its pod CIDR is 10.244.0.0/24, want 10.244.9.0/24, and it cannot be changed: delete the Node object, then restart its kubelet")
}

// wantRecord checks node a when it is ready: it has the labels and taints of others, and the not-ready taint is removed.
func wantRecord(t *testing.T, c *Client) {
	t.Helper()
	var got map[string]any
	err := c.follow(t.Context(), named(nodes, "", "a"), func(string) {}, func(o *unstructured.Unstructured, gone bool) (bool, error) {
		if gone {
			return false, nil
		}
		var keys []string
		for _, taint := range maps(o.Object, "spec", "taints") {
			keys = append(keys, str(taint, "key")+":"+str(taint, "effect"))
		}
		_, labelled := o.GetLabels()["node-role.kubernetes.io/control-plane"]
		got = map[string]any{"cidr": str(o.Object, "spec", "podCIDR"), "label": labelled, "host": o.GetLabels()["kubernetes.io/hostname"], "taints": keys}
		return !strings.Contains(strings.Join(keys, " "), notReady), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"cidr": "10.244.0.0/24", "label": true, "host": "a",
		"taints": []string{"example.test/mine:NoExecute", "node-role.kubernetes.io/control-plane:NoSchedule"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestWatchDeployment(t *testing.T) {
	t.Parallel()
	s := ownServer(t)
	super := s.client(t, "super-admin")
	if _, err := super.Apply(t.Context(), clusterAddOns(t), nil); err != nil {
		t.Fatal(err)
	}
	c, ns := s.client(t, "control"), "kube-system"
	w := startWait(t, func(ctx context.Context, say func(string)) error { return c.WatchDeployment(ctx, ns, "d", say) })
	w.until("deployment kube-system/d does not exist")
	labels := map[string]any{"app": "d"}
	create(t, super, deployments, ns, map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "d"}, "spec": map[string]any{
		"replicas": int64(2), "selector": map[string]any{"matchLabels": labels},
		"template": map[string]any{"metadata": map[string]any{"labels": labels}, "spec": podSpec()},
	}})
	w.until("the controller manager has not observed it yet")
	available := func(n int64) {
		setStatus(t, super, deployments, ns, "d", map[string]any{"observedGeneration": int64(1), "replicas": int64(2), "updatedReplicas": int64(2), "readyReplicas": n, "availableReplicas": n})
	}
	available(1)
	w.until("1 of 2 replicas are available")
	available(2)
	w.until("")
	startWait(t, func(ctx context.Context, say func(string)) error { return c.WatchDeployment(ctx, ns, "d", say) }).until("")
	available(1)
	w.until("1 of 2 replicas are available")
	if err := super.dyn.Resource(deployments).Namespace(ns).Delete(t.Context(), "d", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.until("deployment kube-system/d does not exist")
	kill(s.api)
	if why := <-w.reasons; why == "" { // the exact reason depends on timing
		t.Error("the deployment was reported as available without an API server")
	}
}

// drainServer starts a server with the cluster's roles and a node. The test acts as its kubelet.
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

// runPod creates a pod that runs on node n.
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

// Draining only needs the rights of slipway:control. Pods that belong to the node stay, and disruption budgets are respected and
// reported.
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
	var messages []string
	say := func(line string) {
		mu.Lock()
		messages = append(messages, line)
		mu.Unlock()
		switch {
		case line == "pod default/alone is terminating":
			go endPod(t, super, "alone")
		case line == "pod default/web is terminating":
			go endPod(t, super, "web")
		case strings.HasPrefix(line, "pod default/web cannot be evicted yet: "):
			if !strings.Contains(line, "disruption budget") {
				t.Errorf("got message %q, want the disruption budget in it", line)
			}
			allow(1)
		}
	}
	if err := control.Drain(t.Context(), "n", time.Minute, say); err != nil {
		t.Fatalf("%v; messages %q", err, messages)
	}
	want := []string{
		"pod default/alone has no controller and will not be created again on another node", "pod default/alone is evicted", "pod default/alone is gone", "pod default/alone is terminating",
		"pod default/web cannot be evicted yet", "pod default/web is evicted", "pod default/web is gone", "pod default/web is terminating",
	}
	for i, line := range messages {
		messages[i], _, _ = strings.Cut(line, " yet: ")
		if messages[i] != line {
			messages[i] += " yet"
		}
	}
	if diff := cmp.Diff(want, slices.Compact(slices.Sorted(slices.Values(messages)))); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"agent", "finished", "static"}, podNames(t, super)); diff != "" {
		t.Errorf("pods that stay (-want +got):\n%s", diff)
	}

	wantNode := NodeInfo{
		Name: "n", Roles: []string{"control-plane", "worker"}, PodCIDR: "10.244.0.0/24", Unschedulable: true, Reason: "its condition Ready is not known yet",
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
	for range 2 { // the second time the Node does not exist
		if err := control.DeleteNode(t.Context(), "n"); err != nil {
			t.Fatal(err)
		}
	}
	if err := control.Drain(t.Context(), "n", time.Minute, say); !errors.Is(err, ErrNoNode) {
		t.Errorf("drain an unknown node: got %v, want ErrNoNode", err)
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

// A node is alive from its registration until the node lifecycle controller sets its Ready condition to Unknown.
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
		{"not ready", func() { set(ready("False")) }, true},
		{"no heartbeat", func() { set(map[string]any{"type": "DiskPressure", "status": "False"}, ready("Unknown")) }, false},
	} {
		step.do()
		if got, err := c.NodeAlive(t.Context(), "alive"); err != nil || got != step.want {
			t.Errorf("%s: got alive=%t, error %v, want %t", step.what, got, err, step.want)
		}
	}
	if err := c.DeleteNode(t.Context(), "alive"); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if alive, err := c.NodeAlive(ended, "alive"); err == nil || alive {
		t.Errorf("no response: got alive=%t, error %v", alive, err)
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

// After the timeout, the error names a pod that does not terminate. Another call continues.
func TestDrainLimit(t *testing.T) {
	t.Parallel()
	super, control := drainServer(t)
	if err := control.Drain(t.Context(), "n", time.Minute, func(string) {}); err != nil {
		t.Errorf("drain a node without pods: %v", err)
	}
	runPod(t, super, "slow", owned("ReplicaSet"), "Running")
	err := control.Drain(t.Context(), "n", 2*time.Second, func(string) {})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "pods are left after 2s: pod default/slow (is terminating)") {
		t.Errorf("drain with a pod that does not terminate: got %v", err)
	}
	endPod(t, super, "slow")
	if err := control.Drain(t.Context(), "n", time.Minute, func(string) {}); err != nil {
		t.Errorf("drain after the pod has terminated: %v", err)
	}
}
