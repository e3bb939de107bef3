// SPDX-License-Identifier: Apache-2.0

package kube

import (
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

// One story on one server, from a server that does not answer yet to an add-on that is taken away.
func TestApply(t *testing.T) {
	t.Parallel()
	s := ownServer(t)
	c := s.client(t, "super-admin")
	base, shop := clusterAddOns(t), parse(t, "shop", shopYAML)
	all := append(base[:len(base):len(base)], shop)

	var said recorder
	if changed, err := c.Apply(t.Context(), all, said.progress); err != nil || !changed {
		t.Fatalf("first apply: changed %v, %v", changed, err)
	}
	if !said.has(func(p Progress) bool { return p.Waiting != "" }) {
		t.Error("no reason for waiting was told, although the server was not up yet")
	}
	for _, o := range []string{"Deployment kube-system/coredns", "Shop shops/corner", "ClusterRoleBinding slipway:cluster-admins"} {
		if !said.has(func(p Progress) bool { return p.Object == o && p.Done && p.Changed }) {
			t.Errorf("nothing was told of %s", o)
		}
	}
	// The groups of the bindings work: admin.conf's group, which had no right before. The server makes the roles itself while it
	// becomes ready.
	waitReadyz(t, c)
	if _, err := s.client(t, "admin").dyn.Resource(nodes).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("admin's rights: %v", err)
	}

	said = recorder{}
	if changed, err := c.Apply(t.Context(), all, said.progress); err != nil || changed {
		t.Errorf("second apply: changed %v, %v", changed, err)
	}
	if said.has(func(p Progress) bool { return p.Changed || p.Removed }) {
		t.Error("the second apply told of a change")
	}

	meddle(t, c)
	if changed, err := c.Apply(t.Context(), all, nil); err != nil || !changed {
		t.Errorf("apply after drift: changed %v, %v", changed, err)
	}
	if o, err := c.dyn.Resource(configMaps).Namespace("shops").Get(t.Context(), "prices", metav1.GetOptions{}); err != nil || str(o.Object, "data", "tea") != "3" {
		t.Errorf("drift was not mended: %v", err)
	}

	// Somebody else makes one of the objects theirs; it must survive the add-on.
	relabel(t, c, "default", "taken-over", map[string]string{objects.Label: "theirs"})
	said = recorder{}
	if changed, err := c.Apply(t.Context(), base, said.progress); err != nil || !changed {
		t.Errorf("apply without the shop: changed %v, %v", changed, err)
	}
	said.want(t, map[string]string{
		"Shop shops/corner": "removed", "ConfigMap shops/prices": "removed", "ConfigMap taken-over": "kept",
		"Namespace shops": "kept", "CustomResourceDefinition shops.example.test": "kept",
	})
	if _, err := c.dyn.Resource(shops).Namespace("shops").Get(t.Context(), "corner", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the shop is still there: %v", err)
	}
	if changed, err := c.Apply(t.Context(), base, nil); err != nil || changed {
		t.Errorf("apply again without the shop: changed %v, %v", changed, err)
	}
	if inv, err := c.readInventory(t.Context()); err != nil || len(inv) != len(base) {
		t.Errorf("inventory has %d add-ons, want %d: %v", len(inv), len(base), err)
	}
	testBadAddOn(t, c, base)
}

// A bad object is an error with its name; everything else is applied, and nothing is removed.
func testBadAddOn(t *testing.T, c *Client, base []objects.AddOn) {
	good := parse(t, "good", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: good}\n")
	if _, err := c.Apply(t.Context(), append(base[:len(base):len(base)], good), nil); err != nil {
		t.Fatal(err)
	}
	bad := parse(t, "bad", "apiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec: {ports: [{port: 99999}]}\n")
	also := parse(t, "also", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: also}\n")
	_, err := c.Apply(t.Context(), append(base[:len(base):len(base)], bad, also), nil)
	if err == nil || !strings.Contains(err.Error(), "add-on bad: Service bad:") || !strings.Contains(err.Error(), "99999") {
		t.Errorf("error %v", err)
	}
	// A damaged inventory: everything is applied, nothing is removed, and the damage is told and left for people to see.
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
		t.Errorf("damaged inventory: %v", err)
	}
	for _, name := range []string{"good", "also", "late"} {
		if _, err := c.dyn.Resource(configMaps).Namespace("default").Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestApplyRefusesConfusion(t *testing.T) {
	t.Parallel()
	one := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x, namespace: default}\n"
	same := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"
	for want, addons := range map[string][]objects.AddOn{
		"two add-ons are called a":                      {parse(t, "a", ""), parse(t, "a", "")},
		"the add-ons a and b both have ConfigMap x":     {parse(t, "a", one), parse(t, "b", same)},
		"the add-ons c and d both have CronJob shops/x": {parse(t, "c", "apiVersion: batch/v1beta1\nkind: CronJob\nmetadata: {name: x, namespace: shops}"), parse(t, "d", "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: x, namespace: shops}")},
	} {
		if _, err := (&Client{}).Apply(t.Context(), addons, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func meddle(t *testing.T, c *Client) {
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
		late      bool // out of patience after it has lasted
		lateReady bool // the same with a server that says that it is ready
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
		if p.out(tt.err, yes) {
			t.Errorf("%s: out of patience at once", name)
		}
		p.since = time.Now().Add(-2 * settle)
		if got := p.out(tt.err, no); got != tt.late {
			t.Errorf("%s, lasting: out %v, want %v", name, got, tt.late)
		}
		if got := p.out(tt.err, yes); got != tt.lateReady {
			t.Errorf("%s, lasting and ready: out %v, want %v", name, got, tt.lateReady)
		}
		other := error(apierrors.NewUnauthorized("x"))
		if classify(tt.err) == refused {
			other = errors.New("connection refused")
		}
		if p.out(other, yes) {
			t.Errorf("%s: another trouble has its own time", name)
		}
	}
}

func TestLabelledLeavesTheObjectAlone(t *testing.T) {
	t.Parallel()
	o := parse(t, "a", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x, labels: {k: v}}\n").Objects[0]
	body, err := labelled(o, "a")
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
	if again, _ := labelled(o, "b"); strings.Contains(string(again), `"a"`) {
		t.Errorf("the first label stayed in the object: %s", again)
	}
}

// recorder keeps what an apply told.
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
