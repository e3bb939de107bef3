// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/slipway-project/slipway/internal/core/objects"
)

func TestSeed(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	c := s.client(t, "super-admin")
	object := func(value string) []objects.Object {
		return []objects.Object{{
			"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{"name": "seed", "namespace": "default"}, "data": map[string]any{"k": value},
		}}
	}
	for _, value := range []string{"first", "second"} {
		if err := c.Seed(t.Context(), object(value)); err != nil {
			t.Fatal(err)
		}
	}
	in, err := c.where(t.Context(), gvkOf(object("")[0]), "default")
	if err != nil {
		t.Fatal(err)
	}
	got, err := in.Get(t.Context(), "seed", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if v := str(got.Object, "data", "k"); v != "first" || got.GetLabels()[objects.Label] != "" {
		t.Errorf("seeded twice: data %q, labels %v; want what was there first, and no label of ours", v, got.GetLabels())
	}
}

func TestClearNotReady(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	c := s.client(t, "super-admin")
	const name = "tainted"
	node := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"taints": []any{
			map[string]any{"key": notReady, "effect": "NoSchedule"}, map[string]any{"key": "mine", "effect": "NoSchedule"},
		}},
	}}
	if _, err := c.dyn.Resource(nodes).Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- c.ClearNotReady(t.Context(), name) }()
	ready := []byte(`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"Test","message":"","lastHeartbeatTime":null,"lastTransitionTime":null}]}}`)
	if _, err := c.dyn.Resource(nodes).Patch(t.Context(), name, "application/merge-patch+json", ready, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	got, err := c.dyn.Resource(nodes).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, taint := range maps(got.Object, "spec", "taints") {
		left = append(left, str(taint, "key"))
	}
	if diff := cmp.Diff([]string{"mine"}, left); diff != "" {
		t.Errorf("taints (-want +got):\n%s", diff)
	}
}
