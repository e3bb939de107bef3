// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The approver runs with the rights of slipway:control and no others, over a restart of the API server.
func TestApproveServing(t *testing.T) {
	t.Parallel()
	s := ownServer(t)
	super := s.client(t, "super-admin")
	if _, err := super.Apply(t.Context(), clusterAddOns(t), nil); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var knowsB atomic.Bool
	changed, ended := make(chan struct{}, 1), make(chan error, 1)
	lookup := func(node string) ([]netip.Addr, bool) {
		addrs, _ := recorded(node)
		return addrs, node == "a" || knowsB.Load()
	}
	go func() { ended <- s.client(t, "control").ApproveServing(ctx, lookup, changed) }()
	defer func() {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the approver ended with %v", err)
		}
	}()

	a, b := s.client(t, "node-a"), s.client(t, "node-b")
	if got := verdictOn(t, a, "good", nodeCSR()); got != "Approved SlipwayApproved: name and addresses are those recorded for the node" {
		t.Errorf("good: %s", got)
	}
	foreign := nodeCSR()
	foreign.IPAddresses = append(foreign.IPAddresses, net.ParseIP("10.0.0.2"))
	if got := verdictOn(t, a, "foreign", foreign); got != "Denied SlipwayDenied: the address 10.0.0.2 is not recorded for node a" {
		t.Errorf("foreign: %s", got)
	}
	waitEvent(t, super, "ServingCertificateDenied", "foreign")
	names := nodeCSR()
	names.DNSNames = append(names.DNSNames, "kubernetes")
	if got := verdictOn(t, a, "names", names); !strings.HasPrefix(got, "Denied ") {
		t.Errorf("names: %s", got)
	}

	// Node b is unknown; later it is recorded, and the request that lies there is looked at again.
	ofB := nodeCSR()
	ofB.Subject.CommonName, ofB.DNSNames, ofB.IPAddresses = "system:node:b", []string{"b"}, []net.IP{net.ParseIP("10.0.0.2")}
	ask(t, b, "of-b", ofB)
	if got := verdictOn(t, a, "after", nodeCSR()); !strings.HasPrefix(got, "Approved ") {
		t.Errorf("after: %s", got)
	}
	if got := conditionsOf(t, super, "of-b"); got != "" {
		t.Errorf("the request of an unknown node was decided: %s", got)
	}
	knowsB.Store(true)
	changed <- struct{}{}
	if got := decided(t, b, "of-b"); !strings.HasPrefix(got, "Approved ") {
		t.Errorf("of-b: %s", got)
	}

	kill(s.api)
	if err := s.startAPI(); err != nil {
		t.Fatal(err)
	}
	if err := super.WaitReadyz(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if got := verdictOn(t, a, "restarted", nodeCSR()); !strings.HasPrefix(got, "Approved ") {
		t.Errorf("after the API server's restart: %s", got)
	}
}

func ask(t *testing.T, c *Client, name string, csr *x509.CertificateRequest) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"signerName": servingSigner, "usages": []any{"digital signature", "server auth"},
			"request": base64.StdEncoding.EncodeToString(newRequest(t, csr, key)),
		},
	}}
	if _, err := c.dyn.Resource(requests).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func verdictOn(t *testing.T, c *Client, name string, csr *x509.CertificateRequest) string {
	t.Helper()
	ask(t, c, name, csr)
	return decided(t, c, name)
}

// decided waits for a verdict by watching, as the kubelet does.
func decided(t *testing.T, c *Client, name string) (text string) {
	t.Helper()
	err := c.follow(t.Context(), named(requests, "", name), func(string) {}, func(o *unstructured.Unstructured, gone bool) (bool, error) {
		if !gone {
			text = verdictText(o)
		}
		return text != "", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func conditionsOf(t *testing.T, c *Client, name string) string {
	t.Helper()
	o, err := c.dyn.Resource(requests).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return verdictText(o)
}

func verdictText(o *unstructured.Unstructured) string {
	var all []string
	for _, c := range maps(o.Object, "status", "conditions") {
		all = append(all, str(c, "type")+" "+joinReason(str(c, "reason"), str(c, "message")))
	}
	return strings.Join(all, "; ")
}

func waitEvent(t *testing.T, c *Client, why, about string) {
	t.Helper()
	err := c.follow(t.Context(), query{resource: events, namespace: "default"}, func(string) {}, func(o *unstructured.Unstructured, gone bool) (bool, error) {
		return !gone && str(o.Object, "reason") == why && str(o.Object, "involvedObject", "name") == about, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestEnsureNodeFields(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	super := s.client(t, "super-admin")
	podCIDR := netip.MustParsePrefix("10.244.0.0/24")
	labels, taints := map[string]string{"node-role.kubernetes.io/control-plane": ""}, []Taint{{Key: "node-role.kubernetes.io/control-plane", Effect: "NoSchedule"}}
	set := make(chan error, 1)
	go func() { set <- super.EnsureNodeFields(t.Context(), "a", podCIDR, labels, taints) }()

	// The node registers itself, with what kubelets put there.
	create(t, s.client(t, "node-a"), nodes, "", map[string]any{
		"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "a", "labels": map[string]any{"kubernetes.io/hostname": "a"}},
		"spec": map[string]any{"taints": []any{map[string]any{"key": "example.test/mine", "value": "x", "effect": "NoExecute"}}},
	})
	if err := <-set; err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time nothing is missing
		o, err := super.dyn.Resource(nodes).Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var keys []string
		for _, taint := range maps(o.Object, "spec", "taints") {
			keys = append(keys, str(taint, "key")+":"+str(taint, "effect"))
		}
		got := map[string]any{
			"cidr": str(o.Object, "spec", "podCIDR"), "label": o.GetLabels()["node-role.kubernetes.io/control-plane"],
			"host": o.GetLabels()["kubernetes.io/hostname"], "taints": keys,
		}
		want := map[string]any{
			"cidr": "10.244.0.0/24", "label": "", "host": "a",
			"taints": []string{"example.test/mine:NoExecute", "node.kubernetes.io/not-ready:NoSchedule", "node-role.kubernetes.io/control-plane:NoSchedule"},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if err := super.EnsureNodeFields(t.Context(), "a", podCIDR, labels, taints); err != nil {
			t.Fatal(err)
		}
		after, err := super.dyn.Resource(nodes).Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil || after.GetResourceVersion() != o.GetResourceVersion() {
			t.Errorf("nothing was missing and yet something was written: %v", err)
		}
	}
	err := super.EnsureNodeFields(t.Context(), "a", netip.MustParsePrefix("10.244.9.0/24"), nil, nil)
	if err == nil || !strings.Contains(err.Error(), "it has the pod range 10.244.0.0/24 and the plan wants 10.244.9.0/24") {
		t.Errorf("another pod range: %v", err)
	}
}

func TestWaiters(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	c := s.client(t, "super-admin")
	ns := "waiters"
	create(t, c, schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, "", map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": ns}})

	t.Run("node", func(t *testing.T) {
		t.Parallel()
		w := startWait(t, func(ctx context.Context, say func(string)) error { return c.WaitNodeReady(ctx, "w", say) })
		w.reason("node w does not exist yet")
		create(t, c, nodes, "", map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "w"}})
		w.reason("it has not said yet whether it is Ready")
		setStatus(t, c, nodes, "", "w", map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "no CNI"}}})
		w.reason("KubeletNotReady: no CNI")
		status, err := c.Status(t.Context())
		if err != nil || !hasNode(status, NodeStatus{Name: "w", Reason: "KubeletNotReady: no CNI"}) {
			t.Errorf("status %+v, %v", status, err)
		}
		setStatus(t, c, nodes, "", "w", map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "True"}}})
		w.done(nil)
	})
	t.Run("service account", func(t *testing.T) {
		t.Parallel()
		w := startWait(t, func(ctx context.Context, say func(string)) error { return c.WaitDefaultServiceAccount(ctx, ns, say) })
		w.reason("ServiceAccount waiters/default does not exist yet")
		create(t, c, accounts, ns, map[string]any{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": map[string]any{"name": "default"}})
		w.done(nil)
	})
	t.Run("pod", func(t *testing.T) {
		t.Parallel()
		makePod(t, c, ns, "runs")
		w := startWait(t, func(ctx context.Context, say func(string)) error { return c.WaitPodRunning(ctx, ns, "runs", say) })
		w.reason("it has not said yet whether it is PodScheduled")
		setStatus(t, c, pods, ns, "runs", map[string]any{"phase": "Pending", "containerStatuses": []any{map[string]any{
			"name": "main", "state": map[string]any{"waiting": map[string]any{"reason": "ErrImageNeverPull", "message": "not there"}},
		}}})
		w.reason("container main: ErrImageNeverPull: not there")
		setStatus(t, c, pods, ns, "runs", map[string]any{"phase": "Running", "containerStatuses": []any{}})
		w.done(nil)

		makePod(t, c, ns, "fails")
		w = startWait(t, func(ctx context.Context, say func(string)) error { return c.WaitPodRunning(ctx, ns, "fails", say) })
		w.reason("it has not said yet whether it is PodScheduled")
		setStatus(t, c, pods, ns, "fails", map[string]any{"phase": "Failed", "reason": "Evicted", "message": "disk"})
		w.done(errors.New("wait for pod waiters/fails: it has failed: Evicted: disk"))
	})
	t.Run("deployment", func(t *testing.T) {
		t.Parallel()
		w := startWait(t, func(ctx context.Context, say func(string)) error { return c.WaitDeploymentAvailable(ctx, ns, "d", say) })
		w.reason("deployment waiters/d does not exist yet")
		labels := map[string]any{"app": "d"}
		create(t, c, deployments, ns, map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "d"}, "spec": map[string]any{
			"replicas": int64(2), "selector": map[string]any{"matchLabels": labels},
			"template": map[string]any{"metadata": map[string]any{"labels": labels}, "spec": podSpec()},
		}})
		w.reason("the controller-manager has not seen it yet")
		setStatus(t, c, deployments, ns, "d", map[string]any{"observedGeneration": int64(1), "replicas": int64(2), "updatedReplicas": int64(2), "readyReplicas": int64(1), "availableReplicas": int64(1)})
		w.reason("1 of 2 replicas are available")
		setStatus(t, c, deployments, ns, "d", map[string]any{"observedGeneration": int64(1), "replicas": int64(2), "updatedReplicas": int64(2), "readyReplicas": int64(2), "availableReplicas": int64(2)})
		w.done(nil)
	})
	t.Run("cancelled", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		w := startWait(t, func(_ context.Context, say func(string)) error { return c.WaitNodeReady(ctx, "never", say) })
		w.reason("node never does not exist yet")
		cancel()
		w.done(errors.New("wait for node never: context canceled, last: node never does not exist yet"))
	})
}

// A server that is not there is waited for, with the reason.
func TestWaitReadyz(t *testing.T) {
	t.Parallel()
	s := ownServer(t)
	var reasons []string
	if err := s.client(t, "super-admin").WaitReadyz(t.Context(), func(why string) { reasons = append(reasons, why) }); err != nil {
		t.Fatal(err)
	}
	all := strings.Join(reasons, "\n")
	if !strings.Contains(all, "connection refused") {
		t.Errorf("reasons:\n%s\nwant one that says: connection refused", all)
	}
}

func podSpec() map[string]any {
	return map[string]any{"containers": []any{map[string]any{"name": "main", "image": "example.test/x:1"}}, "automountServiceAccountToken": false}
}

// makePod runs on a node that is bound already, so that no admission asks for a service account's secrets.
func makePod(t *testing.T, c *Client, ns, name string) {
	t.Helper()
	ensureAccount(t, c, ns, "pods")
	spec := podSpec()
	spec["serviceAccountName"] = "pods"
	create(t, c, pods, ns, map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name}, "spec": spec})
}

func ensureAccount(t *testing.T, c *Client, ns, name string) {
	t.Helper()
	if _, err := c.dyn.Resource(accounts).Namespace(ns).Get(t.Context(), name, metav1.GetOptions{}); err == nil {
		return
	}
	create(t, c, accounts, ns, map[string]any{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": map[string]any{"name": name}})
}

func create(t *testing.T, c *Client, r schema.GroupVersionResource, ns string, o map[string]any) {
	t.Helper()
	if _, err := c.dyn.Resource(r).Namespace(ns).Create(t.Context(), &unstructured.Unstructured{Object: o}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func setStatus(t *testing.T, c *Client, r schema.GroupVersionResource, ns, name string, status map[string]any) {
	t.Helper()
	in := c.dyn.Resource(r).Namespace(ns)
	o, err := in.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o.Object["status"] = status
	if _, err := in.UpdateStatus(t.Context(), o, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func hasNode(s Status, want NodeStatus) bool {
	for _, n := range s.Nodes {
		if n == want {
			return true
		}
	}
	return false
}

// waiter is a wait that goes on beside the test.
type waiter struct {
	t       *testing.T
	reasons chan string
	ended   chan error
}

func startWait(t *testing.T, run func(context.Context, func(string)) error) waiter {
	w := waiter{t, make(chan string, 100), make(chan error, 1)}
	go func() { w.ended <- run(t.Context(), func(why string) { w.reasons <- why }) }()
	return w
}

func (w waiter) reason(want string) {
	w.t.Helper()
	select {
	case got := <-w.reasons:
		if got != want {
			w.t.Errorf("reason %q, want %q", got, want)
		}
	case err := <-w.ended:
		w.t.Fatalf("it ended with %v, want the reason %q first", err, want)
	case <-w.t.Context().Done():
		w.t.Fatalf("no reason came, want %q", want)
	}
}

func (w waiter) done(want error) {
	w.t.Helper()
	if err := <-w.ended; (err == nil) != (want == nil) || (want != nil && err.Error() != want.Error()) {
		w.t.Errorf("ended with %v, want %v", err, want)
	}
}
