// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/slipway-project/slipway/internal/core/objects"
)

const shopYAML = `
apiVersion: example.test/v1
kind: Shop
metadata: {name: corner, namespace: shops}
spec: {open: true}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: prices, namespace: shops}
data: {tea: "3"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: taken-over}
data: {ours: "yes"}
---
apiVersion: v1
kind: Namespace
metadata: {name: shops}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: shops.example.test}
spec:
  group: example.test
  names: {kind: Shop, plural: shops, singular: shop, listKind: ShopList}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

var shops = schema.GroupVersionResource{Group: "example.test", Version: "v1", Resource: "shops"}

func clusterAddOns(t *testing.T) []objects.AddOn {
	t.Helper()
	addons, err := objects.Cluster(objects.Params{
		DNSAddress: netip.MustParseAddr("10.96.0.10"), Replicas: 2, Corefile: ".:53 {\n}\n", CoreDNSImage: "example.test/coredns:1",
		APIEndpoint: netip.MustParseAddrPort("10.0.0.2:6443"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return addons
}

func parse(t *testing.T, name, manifest string) objects.AddOn {
	t.Helper()
	addon, err := objects.Parse(name, manifest)
	if err != nil {
		t.Fatal(err)
	}
	return addon
}

// It starts before the server responds and ends after an add-on was removed.
func TestApply(t *testing.T) {
	t.Parallel()
	s := ownServer(t)
	c := s.client(t, "super-admin")
	base, shop := clusterAddOns(t), parse(t, "shop", shopYAML)
	all := append(base[:len(base):len(base)], shop)

	var events recorder
	if changed, err := c.Apply(t.Context(), all, events.progress); err != nil || !changed {
		t.Fatalf("first apply: got changed=%v, error %v", changed, err)
	}
	if !events.has(func(p Progress) bool { return p.Waiting != "" }) {
		t.Error("no reason for waiting was reported while the server was starting")
	}
	for _, o := range []string{"Deployment kube-system/coredns", "Shop shops/corner", "ClusterRoleBinding slipway:cluster-admins"} {
		if !events.has(func(p Progress) bool { return p.Object == o && p.Done && p.Changed }) {
			t.Errorf("no change of %s was reported", o)
		}
	}
	// The role bindings are effective: the group of admin.conf had no rights before. The server creates the roles before it is ready.
	waitReadyz(t, c)
	if _, err := s.client(t, "admin").dyn.Resource(nodes).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("list nodes as the administrator: %v", err)
	}

	events = recorder{}
	if changed, err := c.Apply(t.Context(), all, events.progress); err != nil || changed {
		t.Errorf("second apply: got changed=%v, error %v", changed, err)
	}
	if events.has(func(p Progress) bool { return p.Changed || p.Removed }) {
		t.Error("the second apply reported a change")
	}

	changePrices(t, c)
	if changed, err := c.Apply(t.Context(), all, nil); err != nil || !changed {
		t.Errorf("apply after drift: got changed=%v, error %v", changed, err)
	}
	if o, err := c.dyn.Resource(configMaps).Namespace("shops").Get(t.Context(), "prices", metav1.GetOptions{}); err != nil || str(o.Object, "data", "tea") != "3" {
		t.Errorf("drift was not corrected: %v", err)
	}

	// An object with another label must not be deleted with the add-on.
	relabel(t, c, "default", "taken-over", map[string]string{objects.Label: "theirs"})
	events = recorder{}
	if changed, err := c.Apply(t.Context(), base, events.progress); err != nil || !changed {
		t.Errorf("apply without the shop: got changed=%v, error %v", changed, err)
	}
	events.want(t, map[string]string{
		"Shop shops/corner": "removed", "ConfigMap shops/prices": "removed", "ConfigMap taken-over": "kept",
		"Namespace shops": "kept", "CustomResourceDefinition shops.example.test": "kept",
	})
	if _, err := c.dyn.Resource(shops).Namespace("shops").Get(t.Context(), "corner", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the shop was not deleted: %v", err)
	}
	if changed, err := c.Apply(t.Context(), base, nil); err != nil || changed {
		t.Errorf("apply again without the shop: got changed=%v, error %v", changed, err)
	}
	if inv, err := c.readInventory(t.Context()); err != nil || len(inv) != len(base) {
		t.Errorf("inventory: got %d add-ons, want %d: %v", len(inv), len(base), err)
	}
	testBadAddOn(t, c, base)
}

// An invalid object is an error with its name. The other objects are applied, and nothing is deleted.
func testBadAddOn(t *testing.T, c *Client, base []objects.AddOn) {
	good := parse(t, "good", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: good}\n")
	if _, err := c.Apply(t.Context(), append(base[:len(base):len(base)], good), nil); err != nil {
		t.Fatal(err)
	}
	bad := parse(t, "bad", "apiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec: {ports: [{port: 99999}]}\n")
	also := parse(t, "also", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: also}\n")
	_, err := c.Apply(t.Context(), append(base[:len(base):len(base)], bad, also), nil)
	if err == nil || !strings.Contains(err.Error(), "add-on bad: Service bad:") || !strings.Contains(err.Error(), "99999") {
		t.Errorf("invalid object: got %v", err)
	}
	// With a damaged inventory, all objects are applied and nothing is deleted. The damage is reported and not overwritten.
	in := c.dyn.Resource(configMaps).Namespace("kube-system")
	o, err := in.Get(t.Context(), inventoryName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o.Object["data"] = map[string]any{"good": "[{"}
	if _, err := in.Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	late := parse(t, "late", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: late}\n")
	if _, err = c.Apply(t.Context(), append(base[:len(base):len(base)], late), nil); err == nil || !strings.Contains(err.Error(), `entry "good"`) {
		t.Errorf("damaged inventory: got %v", err)
	}
	for _, name := range []string{"good", "also", "late"} {
		if _, err := c.dyn.Resource(configMaps).Namespace("default").Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestApplyRefusesDuplicates(t *testing.T) {
	t.Parallel()
	one := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x, namespace: default}\n"
	same := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"
	for want, addons := range map[string][]objects.AddOn{
		"two add-ons have the name a":                      {parse(t, "a", ""), parse(t, "a", "")},
		"the add-ons a and b both contain ConfigMap x":     {parse(t, "a", one), parse(t, "b", same)},
		"the add-ons c and d both contain CronJob shops/x": {parse(t, "c", "apiVersion: batch/v1beta1\nkind: CronJob\nmetadata: {name: x, namespace: shops}"), parse(t, "d", "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: x, namespace: shops}")},
	} {
		if _, err := (&Client{}).Apply(t.Context(), addons, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func changePrices(t *testing.T, c *Client) {
	t.Helper()
	in := c.dyn.Resource(configMaps).Namespace("shops")
	o, err := in.Get(t.Context(), "prices", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o.Object["data"] = map[string]any{"tea": "4"}
	if _, err := in.Update(t.Context(), o, metav1.UpdateOptions{FieldManager: "kubectl-edit"}); err != nil {
		t.Fatal(err)
	}
}

func relabel(t *testing.T, c *Client, namespace, name string, labels map[string]string) {
	t.Helper()
	in := c.dyn.Resource(configMaps).Namespace(namespace)
	o, err := in.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o.SetLabels(labels)
	if _, err := in.Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestPatience(t *testing.T) {
	t.Parallel()
	gr := schema.GroupResource{Resource: "pods"}
	tests := map[string]struct {
		err       error
		late      bool // exhausted after a long time
		lateReady bool // the same with a server that is ready
	}{
		"no connection": {errors.New("connection refused"), false, false},
		"unavailable":   {apierrors.NewServiceUnavailable("etcd"), false, false},
		"internal":      {apierrors.NewInternalError(errors.New("webhook")), false, false},
		"too many":      {apierrors.NewTooManyRequests("later", 1), false, false},
		"forbidden":     {apierrors.NewForbidden(gr, "x", errors.New("RBAC")), true, true},
		"no namespace":  {apierrors.NewNotFound(gr, "x"), true, true},
		"conflict":      {apierrors.NewConflict(gr, "x", nil), true, true},
		"invalid":       {apierrors.NewInvalid(schema.GroupKind{}, "x", nil), false, true},
		"bad request":   {apierrors.NewBadRequest("x"), false, true},
	}
	yes, no := func() bool { return true }, func() bool { return false }
	for name, tt := range tests {
		var p patience
		if p.exhausted(tt.err, yes) {
			t.Errorf("%s: exhausted at once", name)
		}
		p.since = time.Now().Add(-2 * refusedLimit)
		if got := p.exhausted(tt.err, no); got != tt.late {
			t.Errorf("%s after a long time: got exhausted=%v, want %v", name, got, tt.late)
		}
		if got := p.exhausted(tt.err, yes); got != tt.lateReady {
			t.Errorf("%s after a long time, server ready: got exhausted=%v, want %v", name, got, tt.lateReady)
		}
		other := error(apierrors.NewUnauthorized("x"))
		if classify(tt.err) == refused {
			other = errors.New("connection refused")
		}
		if p.exhausted(other, yes) {
			t.Errorf("%s: the time did not start again with an error of another class", name)
		}
	}
}

func TestWithLabelDoesNotChangeTheObject(t *testing.T) {
	t.Parallel()
	o := parse(t, "a", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x, labels: {k: v}}\n").Objects[0]
	body, err := withLabel(o, "a")
	if err != nil {
		t.Fatal(err)
	}
	var u unstructured.Unstructured
	if err := u.UnmarshalJSON(body); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"k": "v", objects.Label: "a"}, u.GetLabels()); diff != "" {
		t.Error(diff)
	}
	if again, _ := withLabel(o, "b"); strings.Contains(string(again), `"a"`) {
		t.Errorf("the object contains the first label: %s", again)
	}
}

// recorder records the progress of an apply.
type recorder struct {
	mu  sync.Mutex // guards all
	all []Progress
}

func (r *recorder) progress(p Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, p)
}

func (r *recorder) has(match func(Progress) bool) bool {
	for _, p := range r.all {
		if match(p) {
			return true
		}
	}
	return false
}

func (r *recorder) want(t *testing.T, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	for _, p := range r.all {
		switch {
		case p.Removed:
			got[p.Object] = "removed"
		case p.Kept:
			got[p.Object] = "kept"
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

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
	in, err := c.resourceInterface(t.Context(), gvkOf(object("")[0]), "default")
	if err != nil {
		t.Fatal(err)
	}
	got, err := in.Get(t.Context(), "seed", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if v := str(got.Object, "data", "k"); v != "first" || got.GetLabels()[objects.Label] != "" {
		t.Errorf("seeded twice: got data %q, labels %v, want the data of the first time and no label of Slipway", v, got.GetLabels())
	}
}

// Deletions, changes and the removal of the label are reported. Changes of a status are not.
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
	reported, ended := make(chan string, 100), make(chan error, 1)
	go func() { ended <- c.WatchDrift(ctx, addons, func(object string) { reported <- object }) }()
	expect := func(want string) {
		t.Helper()
		if got := <-reported; got != want {
			t.Errorf("reported %s, want %s", got, want)
		}
	}
	expect("ConfigMap shops/prices") // deleted before the watch started

	create(t, c, configMaps, "default", map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "unrelated"}})
	relabel(t, c, "default", "taken-over", nil)
	expect("ConfigMap default/taken-over")
	setStatus(t, c, deployments, "kube-system", "coredns", map[string]any{"replicas": int64(1)})
	if err := c.dyn.Resource(shops).Namespace("shops").Delete(t.Context(), "corner", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("Shop shops/corner")
	if err := c.dyn.Resource(deployments).Namespace("kube-system").Delete(t.Context(), "coredns", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("Deployment kube-system/coredns")

	if _, err := c.Apply(t.Context(), addons, nil); err != nil {
		t.Fatal(err)
	}
	back := map[string]bool{}
	for range 4 {
		back[<-reported] = true
	}
	if diff := cmp.Diff(map[string]bool{
		"ConfigMap shops/prices": true, "ConfigMap default/taken-over": true, "Shop shops/corner": true, "Deployment kube-system/coredns": true,
	}, back); diff != "" {
		t.Errorf("reported after Apply (-want +got):\n%s", diff)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Changes between a watch and the next list are reported.
func TestDriftBetweenWatches(t *testing.T) {
	t.Parallel()
	var reported []string
	d := drift{kind: "ConfigMap", namespaced: true, seen: map[string]string{"default/a": "", "default/b": ""}, changed: func(o string) { reported = append(reported, o) }}
	list := func(versions map[string]string) {
		reported = nil
		d.compare(true)
		for name, v := range versions {
			o := &unstructured.Unstructured{}
			o.SetNamespace("default")
			o.SetName(name)
			o.SetResourceVersion(v)
			d.observe(o, false)
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
		if diff := cmp.Diff(step.want, reported); diff != "" {
			t.Errorf("after %v (-want +got):\n%s", step.list, diff)
		}
	}
}
