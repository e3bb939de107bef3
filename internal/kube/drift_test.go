// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// What is deleted, changed or stripped of its label is told; a status is not.
func TestWatchDrift(t *testing.T) {
	t.Parallel()
	s := ownServer(t)
	c := s.client(t, "super-admin")
	addons := append(clusterAddOns(t), parse(t, "shop", shopYAML))
	if _, err := c.Apply(t.Context(), addons, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.dyn.Resource(configMaps).Namespace("shops").Delete(t.Context(), "prices", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	told, ended := make(chan string, 100), make(chan error, 1)
	go func() { ended <- c.WatchDrift(ctx, addons, func(object string) { told <- object }) }()
	is := func(want string) {
		t.Helper()
		if got := <-told; got != want {
			t.Errorf("told of %s, want %s", got, want)
		}
	}
	is("ConfigMap shops/prices") // gone before anybody watched

	create(t, c, configMaps, "default", map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "stranger"}})
	relabel(t, c, "default", "taken-over", nil)
	is("ConfigMap default/taken-over")
	setStatus(t, c, deployments, "kube-system", "coredns", map[string]any{"replicas": int64(1)})
	if err := c.dyn.Resource(shops).Namespace("shops").Delete(t.Context(), "corner", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	is("Shop shops/corner")
	if err := c.dyn.Resource(deployments).Namespace("kube-system").Delete(t.Context(), "coredns", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	is("Deployment kube-system/coredns")

	if _, err := c.Apply(t.Context(), addons, nil); err != nil {
		t.Fatal(err)
	}
	back := map[string]bool{}
	for range 4 {
		back[<-told] = true
	}
	if diff := cmp.Diff(map[string]bool{
		"ConfigMap shops/prices": true, "ConfigMap default/taken-over": true, "Shop shops/corner": true, "Deployment kube-system/coredns": true,
	}, back); diff != "" {
		t.Errorf("put back (-want +got):\n%s", diff)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A watch that breaks misses changes; the next list shows them.
func TestDriftBetweenWatches(t *testing.T) {
	t.Parallel()
	var told []string
	d := drift{kind: "ConfigMap", namespaced: true, seen: map[string]string{"default/a": "", "default/b": ""}, changed: func(o string) { told = append(told, o) }}
	list := func(versions map[string]string) {
		told = nil
		d.compare(true)
		for name, v := range versions {
			o := &unstructured.Unstructured{}
			o.SetNamespace("default")
			o.SetName(name)
			o.SetResourceVersion(v)
			d.see(o, false)
		}
		d.compare(false)
	}
	for _, step := range []struct {
		list map[string]string
		want []string
	}{
		{map[string]string{"a": "1", "b": "1"}, nil},
		{map[string]string{"a": "1", "b": "1"}, nil},
		{map[string]string{"a": "2", "b": "1"}, []string{"ConfigMap default/a"}},
		{map[string]string{"a": "2"}, []string{"ConfigMap default/b"}},
		{map[string]string{}, []string{"ConfigMap default/a", "ConfigMap default/b"}},
		{map[string]string{"a": "3", "b": "3"}, []string{"ConfigMap default/a", "ConfigMap default/b"}},
	} {
		list(step.list)
		if diff := cmp.Diff(step.want, told); diff != "" {
			t.Errorf("after %v (-want +got):\n%s", step.list, diff)
		}
	}
}
