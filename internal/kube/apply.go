// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/slipway-project/slipway/internal/core/objects"
)

// Progress is one fact about an apply.
type Progress struct {
	AddOn  string
	Object string // "Deployment kube-system/coredns"; empty when the whole add-on is meant

	Waiting string // why it is not there yet
	Done    bool
	Changed bool // with Done: it was made or altered
	Removed bool // with Done: it was taken away, because no add-on has it any more
	Kept    bool // with Done: no add-on has it any more, and it stays, because what is in it is not ours
}

// Apply makes the cluster have exactly these add-ons: their objects are applied, those of add-ons that are not wanted any
// more are removed. The sets and, within a set, objects that do not need each other go at once. It waits without limit for a
// server that is away; an object that the server refuses is an error, which holds up nothing else. A second call with the same
// add-ons changes nothing. progress may be nil and is never called twice at a time.
func (c *Client) Apply(ctx context.Context, addons []objects.AddOn, progress func(Progress)) (changed bool, err error) {
	if err := distinct(addons); err != nil {
		return false, fmt.Errorf("apply: %w", err)
	}
	a := &applier{Client: c, progress: progress}
	before, err := a.record(ctx, addons)
	if ctx.Err() != nil {
		return false, fmt.Errorf("apply: %w", err)
	}
	errs := make([]error, len(addons)+1)
	errs[len(addons)] = err // what is wrong with the inventory keeps nothing from being applied
	var wg sync.WaitGroup
	for i, addon := range addons {
		wg.Go(func() { errs[i] = a.addon(ctx, addon) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return a.changed.Load(), fmt.Errorf("apply: %w", err) // nothing is removed while something is amiss
	}
	if err := a.prune(ctx, addons, before); err != nil {
		return a.changed.Load(), fmt.Errorf("apply: %w", err)
	}
	return a.changed.Load(), nil
}

type applier struct {
	*Client
	changed atomic.Bool

	mu       sync.Mutex // one call of the function below at a time
	progress func(Progress)
}

func (a *applier) tell(p Progress) {
	if p.Changed || p.Removed {
		a.changed.Store(true)
	}
	if a.progress == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.progress(p)
}

// waves of a set: what others are made in or of; what workloads refer to; the rest. Within a wave nothing waits.
func wave(o objects.Object) int {
	switch o.Kind() {
	case "Namespace", "CustomResourceDefinition":
		return 0
	case "Deployment", "DaemonSet", "StatefulSet", "Pod", "Job", "CronJob", "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "APIService":
		return 2
	}
	if gvk := gvkOf(o); known[gvk.Group][gvk.Kind].name != "" {
		return 1
	}
	return 2 // a custom resource
}

func (a *applier) addon(ctx context.Context, addon objects.AddOn) error {
	for w := range 3 {
		var errs []error
		var mu sync.Mutex // guards errs
		var wg sync.WaitGroup
		for _, o := range addon.Objects {
			if wave(o) != w {
				continue
			}
			wg.Go(func() {
				if err := a.object(ctx, addon.Name, o); err != nil {
					mu.Lock()
					defer mu.Unlock()
					errs = append(errs, fmt.Errorf("add-on %s: %s: %w", addon.Name, o, err))
				}
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	a.tell(Progress{AddOn: addon.Name, Done: true})
	return nil
}

// object applies one object and, for a definition, waits until its kind is served.
func (a *applier) object(ctx context.Context, addon string, o objects.Object) error {
	body, err := labelled(o, addon)
	if err != nil {
		return err
	}
	waiting := onChange(func(why string) { a.tell(Progress{AddOn: addon, Object: o.String(), Waiting: why}) })
	var changed bool
	err = a.try(ctx, waiting, func() (err error) {
		changed, err = a.put(ctx, o, body)
		return err
	})
	if err == nil && o.Kind() == "CustomResourceDefinition" {
		err = a.wait(ctx, named(definitions, "", o.Name()), o.String(), waiting, func(u *unstructured.Unstructured) (string, error) {
			_, why := condition(u, "Established")
			return why, nil
		})
	}
	if err != nil {
		return err
	}
	a.tell(Progress{AddOn: addon, Object: o.String(), Done: true, Changed: changed})
	return nil
}

// put is one try. What an apply changed shows when what was there before is compared with what is there after.
func (c *Client) put(ctx context.Context, o objects.Object, body []byte) (changed bool, err error) {
	in, err := c.where(ctx, gvkOf(o), o.Namespace())
	if err != nil {
		return false, err
	}
	before, err := in.Get(ctx, o.Name(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		before, err = nil, nil
	}
	if err != nil {
		return false, err
	}
	force := true
	after, err := in.Patch(ctx, o.Name(), types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: manager, Force: &force})
	if err != nil {
		return false, err
	}
	return before == nil || !alike(before, after), nil
}

// alike leaves out what others write all the time, and so between two requests: status, and who owns which field.
func alike(a, b *unstructured.Unstructured) bool {
	if a.GetUID() != b.GetUID() {
		return false
	}
	if a.GetResourceVersion() == b.GetResourceVersion() {
		return true
	}
	for _, o := range []*unstructured.Unstructured{a, b} {
		delete(o.Object, "status")
		o.SetManagedFields(nil)
		o.SetResourceVersion("")
	}
	return equality.Semantic.DeepEqual(a.Object, b.Object)
}

// where is the place of objects of a kind; those that live in a namespace and name none live in "default".
func (c *Client) where(ctx context.Context, gvk schema.GroupVersionKind, namespace string) (dynamic.ResourceInterface, error) {
	r, err := c.resource(ctx, gvk)
	if err != nil {
		return nil, err
	}
	in := c.dyn.Resource(gvk.GroupVersion().WithResource(r.name))
	switch {
	case !r.namespaced:
		return in, nil
	case namespace == "":
		namespace = metav1.NamespaceDefault
	}
	return in.Namespace(namespace), nil
}

// labelled is the object's JSON with the add-on's label. The object itself is left as it is.
func labelled(o objects.Object, addon string) ([]byte, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	u := unstructured.Unstructured{}
	if err := u.UnmarshalJSON(body); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	labels := u.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[objects.Label] = addon
	u.SetLabels(labels)
	return u.MarshalJSON()
}

func gvkOf(o objects.Object) schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(o.APIVersion(), o.Kind())
}

// distinct refuses two add-ons of one name, and an object that two add-ons have: they would take it from each other for ever.
func distinct(addons []objects.AddOn) error {
	names, owners := map[string]bool{}, map[id]string{}
	for _, addon := range addons {
		if names[addon.Name] {
			return fmt.Errorf("two add-ons are called %s", addon.Name)
		}
		names[addon.Name] = true
		for _, o := range addon.Objects {
			key := idOf(o).sameness()
			if owner, ok := owners[key]; ok && owner != addon.Name {
				return fmt.Errorf("the add-ons %s and %s both have %s", owner, addon.Name, o)
			}
			owners[key] = addon.Name
		}
	}
	return nil
}
