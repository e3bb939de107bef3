// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"crypto"
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

	"github.com/slipway-project/slipway/internal/certtest"
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
	known := func() map[string]Machine {
		all := recorded()
		if !knowsB.Load() {
			delete(all, "b")
		}
		return all
	}
	go func() { ended <- s.client(t, "control").ApproveServing(ctx, known, changed) }()
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
	ask(t, b, "of-b", ofB, certtest.Key(t))
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

	// A key that was approved for a is none for b; for a it is good again.
	key := certtest.Key(t)
	for _, tt := range []struct {
		name, want string
		who        *Client
		csr        *x509.CertificateRequest
	}{
		{"with-key", "Approved ", a, nodeCSR()},
		{"with-its-key", "Denied SlipwayDenied: its key is already the key of node a", b, ofB},
		{"with-key-again", "Approved ", a, nodeCSR()},
	} {
		ask(t, tt.who, tt.name, tt.csr, key)
		if got := decided(t, tt.who, tt.name); !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: %s", tt.name, got)
		}
	}
	waitEvent(t, super, "ServingCertificateDenied", "with-its-key")

	kill(s.api)
	if err := s.startAPI(); err != nil {
		t.Fatal(err)
	}
	waitReadyz(t, super)
	ask(t, b, "with-its-key-later", ofB, key)
	if got := decided(t, b, "with-its-key-later"); !strings.HasPrefix(got, "Denied ") {
		t.Errorf("after the API server's restart a's key is good for b: %s", got)
	}
	if got := verdictOn(t, a, "restarted", nodeCSR()); !strings.HasPrefix(got, "Approved ") {
		t.Errorf("after the API server's restart: %s", got)
	}
}

func ask(t *testing.T, c *Client, name string, csr *x509.CertificateRequest, key crypto.Signer) {
	t.Helper()
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
	ask(t, c, name, csr, certtest.Key(t))
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

// The record is in the node, comes back when the node does, and the node falls when it is not ready: with the rights of
// slipway:control and no others.
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
	ready := func(word string) {
		setStatus(t, super, nodes, "", "a", map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": word, "reason": "Test"}}})
	}
	for i := range 2 { // the second time somebody has deleted the node and its kubelet registers it again
		create(t, s.client(t, "node-a"), nodes, "", registered)
		w.until("it has not said yet whether it is Ready")
		ready("True")
		w.until("")
		wantRecord(t, super)
		if i == 1 {
			keep(record).until("") // whoever comes later is told that all is well, too
		}
		ready("Unknown")
		w.until("Test")
		if err := super.dyn.Resource(nodes).Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.until("node a does not exist")
	}
	if n := writes.Load(); n != 2 {
		t.Errorf("%d writes of the record, want 2", n)
	}
	create(t, s.client(t, "node-a"), nodes, "", registered)
	w.until("it has not said yet whether it is Ready")
	record.PodCIDR = netip.MustParsePrefix("10.244.9.0/24")
	keep(record).until("it has the pod range 10.244.0.0/24 and the plan wants 10.244.9.0/24, which cannot be changed: delete the Node object, then restart its kubelet")
}

// wantRecord looks at node a when it is ready: others' label and taint are there, the taint of its birth is not.
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
	w.until("the controller-manager has not seen it yet")
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
	if why := <-w.reasons; why == "" { // connection refused, or reset, or the end of the stream
		t.Error("it is called available by nobody")
	}
}

func podSpec() map[string]any {
	return map[string]any{"containers": []any{map[string]any{"name": "main", "image": "example.test/x:1"}}, "automountServiceAccountToken": false}
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

// until passes over other reasons: what comes between two states depends on who is faster.
func (w waiter) until(want string) {
	w.t.Helper()
	var others []string
	for {
		select {
		case got := <-w.reasons:
			if got == want {
				return
			}
			others = append(others, got)
		case err := <-w.ended:
			w.t.Fatalf("it ended with %v, want the reason %q first", err, want)
		case <-w.t.Context().Done():
			w.t.Fatalf("want the reason %q, got %q", want, others)
		}
	}
}
