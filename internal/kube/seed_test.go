// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
