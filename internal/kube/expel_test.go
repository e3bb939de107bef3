// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/testkit"
)

// A removed node still has its certificate, but it can neither register nor request another certificate, and its Node is deleted.
// Other nodes are not affected, and the removed node may come back. Expel only needs the rights of the control role.
func TestExpel(t *testing.T) {
	t.Parallel()
	s := ownServer(t)
	super := s.client(t, "super-admin")
	if _, err := super.Apply(t.Context(), clusterAddOns(t)[:1], nil); err != nil {
		t.Fatal(err)
	}
	a, b := s.client(t, "node-a"), s.client(t, "node-b")
	if err := register(t, b, "b"); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	now := NodeStates{In: map[string]bool{"a": true}, Removed: map[string]bool{"b": true}}
	changed, ended := make(chan struct{}, 1), make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		ended <- s.client(t, "control").Expel(ctx, func() NodeStates {
			mu.Lock()
			defer mu.Unlock()
			return now
		}, changed)
	}()
	testkit.Eventually(t, "the removed node cannot register", func() bool {
		return apierrors.IsForbidden(register(t, b, "b"))
	})
	testkit.Eventually(t, "the Node of the removed node is deleted", func() bool {
		all, err := super.ListNodes(t.Context())
		return err == nil && len(all) == 0
	})
	if err := renew(t, b, "system:node:b"); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "was removed from the cluster") {
		t.Errorf("certificate request of a removed node: got %v, want Forbidden", err)
	}
	if err := errors.Join(register(t, a, "a"), renew(t, a, "system:node:a")); err != nil {
		t.Errorf("registration of a node of the cluster: %v", err)
	}
	mu.Lock()
	now = NodeStates{In: map[string]bool{"a": true, "b": true}}
	mu.Unlock()
	changed <- struct{}{}
	testkit.Eventually(t, "the node can register again", func() bool { return register(t, b, "b") == nil })
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Expel returned %v", err)
	}
}

// An administrator with rights to all Secrets cannot write records or delete their namespace.
func TestRecordsAreGuarded(t *testing.T) {
	t.Parallel()
	s := ownServer(t)
	if _, err := s.client(t, "super-admin").Apply(t.Context(), clusterAddOns(t)[:1], nil); err != nil {
		t.Fatal(err)
	}
	admin := s.client(t, "admin")
	in := admin.dyn.Resource(secrets).Namespace(recordsNamespace)
	forged := func() error {
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"generateName": "nodes-"}}}
		if _, err := in.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			return err
		}
		return errors.New("the Secret was created")
	}
	testkit.Eventually(t, "the policy is in force", func() bool {
		return strings.Contains(reason(forged()), "the cluster's records of its nodes")
	})
	lists := admin.dyn.Resource(configMaps).Namespace(recordsNamespace)
	for name, want := range map[string]bool{removedName: true, "kube-root-ca.crt": false} {
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}}}
		if _, err := lists.Create(t.Context(), o, metav1.CreateOptions{}); apierrors.IsForbidden(err) != want {
			t.Errorf("an administrator creates ConfigMap %s: got %v, want Forbidden=%t", name, err, want)
		}
	}
	spaces := admin.dyn.Resource(nodes.GroupVersion().WithResource("namespaces"))
	if err := spaces.Delete(t.Context(), recordsNamespace, metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("an administrator deletes the namespace of the records: got %v, want Forbidden", err)
	}
	if _, err := s.client(t, "control").Records().List(t.Context(), "nodes"); err != nil {
		t.Errorf("the control role lists records: %v", err)
	}
}

func TestRemovedNodes(t *testing.T) {
	t.Parallel()
	set := func(names ...string) map[string]bool {
		out := map[string]bool{}
		for _, n := range names {
			out[n] = true
		}
		return out
	}
	have := map[string]string{"back": "was removed", "lost": "was removed", "stays": "is being removed"}
	got := removedNodes(have, NodeStates{In: set("back", "in"), Leaving: set("leaves"), Removed: set("stays", "new")})
	want := map[string]string{"lost": "was removed", "stays": "was removed", "new": "was removed", "leaves": "is being removed"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// register creates the Node, as a kubelet does when it starts.
func register(t *testing.T, c *Client, name string) error {
	t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": name}}}
	_, err := c.dyn.Resource(nodes).Create(t.Context(), o, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// renew requests a client certificate, as a kubelet does when its own is due for renewal.
func renew(t *testing.T, c *Client, user string) error {
	t.Helper()
	csr := &x509.CertificateRequest{}
	csr.Subject.CommonName, csr.Subject.Organization = user, []string{nodesGroup}
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": map[string]any{"generateName": "csr-"},
		"spec": map[string]any{
			"signerName": "kubernetes.io/kube-apiserver-client-kubelet", "usages": []any{"digital signature", "client auth"},
			"request": base64.StdEncoding.EncodeToString(newRequest(t, csr, certtest.Key(t))),
		},
	}}
	_, err := c.dyn.Resource(requests).Create(t.Context(), o, metav1.CreateOptions{})
	return err
}
