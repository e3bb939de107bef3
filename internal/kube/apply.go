// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-project/slipway/internal/core/objects"
)

// Progress is one event of an apply.
type Progress struct {
	AddOn  string
	Object string // "Deployment kube-system/coredns"; empty for an event of the whole add-on

	Waiting string // why the object is not applied yet
	Done    bool
	Changed bool // with Done: the object was created or changed
	Removed bool // with Done: the object was deleted, because no add-on contains it any more
	Kept    bool // with Done: no add-on contains the object any more, but it was not deleted, because users may depend on it
}

// Apply makes the cluster have exactly these add-ons: it applies their objects and deletes those of add-ons that are not wanted any
// more. Add-ons, and objects of an add-on that do not depend on each other, are applied concurrently. Apply waits without limit
// while the server cannot be reached. An object that the server rejects is an error, but the other objects are applied. A second
// call with the same add-ons changes nothing. progress may be nil; calls of it never overlap.
func (c *Client) Apply(ctx context.Context, addons []objects.AddOn, progress func(Progress)) (changed bool, err error) {
	if err := checkDistinct(addons); err != nil {
		return false, fmt.Errorf("apply: %w", err)
	}
	a := &applier{Client: c, progress: progress}
	before, err := a.record(ctx, addons)
	if ctx.Err() != nil {
		return false, fmt.Errorf("apply: %w", err)
	}
	errs := make([]error, len(addons)+1)
	errs[len(addons)] = err // an unreadable inventory does not prevent the objects from being applied
	var wg sync.WaitGroup
	for i, addon := range addons {
		wg.Go(func() { errs[i] = a.addon(ctx, addon) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return a.changed.Load(), fmt.Errorf("apply: %w", err) // nothing is deleted after an error
	}
	if err := a.prune(ctx, addons, before); err != nil {
		return a.changed.Load(), fmt.Errorf("apply: %w", err)
	}
	return a.changed.Load(), nil
}

// Seed creates objects that the controller manager would create a moment later, so that the first pods need not wait for it. It
// does not change existing objects. The objects do not belong to Slipway: they have neither its label nor its field manager.
func (c *Client) Seed(ctx context.Context, objs []objects.Object) error {
	for _, o := range objs {
		err := c.try(ctx, func(string) {}, func() error {
			in, err := c.resourceInterface(ctx, gvkOf(o), o.Namespace())
			if err != nil {
				return err
			}
			_, err = in.Create(ctx, &unstructured.Unstructured{Object: o}, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("seed %s: %w", o, err)
		}
	}
	return nil
}

// applier is the state of one call of Apply. Its methods may be called concurrently.
type applier struct {
	*Client
	changed atomic.Bool

	mu       sync.Mutex // serializes calls of the function below
	progress func(Progress)
}

// report passes an event to the caller of Apply and remembers whether anything has changed.
func (a *applier) report(p Progress) {
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

// wave returns the order of an object within its add-on: 0 for namespaces and definitions, which other objects need; 1 for objects
// that workloads refer to; 2 for the rest. The objects of a wave are applied concurrently.
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

// addon applies the objects of one add-on, wave by wave. After an error in one wave, it does not start the
// next.
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
	a.report(Progress{AddOn: addon.Name, Done: true})
	return nil
}

// object applies one object. For a definition it also waits until the new kind is served.
func (a *applier) object(ctx context.Context, addon string, o objects.Object) error {
	body, err := withLabel(o, addon)
	if err != nil {
		return err
	}
	waiting := onChange(func(why string) { a.report(Progress{AddOn: addon, Object: o.String(), Waiting: why}) })
	var changed bool
	err = a.try(ctx, waiting, func() (err error) {
		changed, err = a.applyOnce(ctx, o, body)
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
	a.report(Progress{AddOn: addon, Object: o.String(), Done: true, Changed: changed})
	return nil
}

// applyOnce applies an object by server-side apply. To find out whether that changed it, it compares the object before and after.
func (c *Client) applyOnce(ctx context.Context, o objects.Object, body []byte) (changed bool, err error) {
	in, err := c.resourceInterface(ctx, gvkOf(o), o.Namespace())
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
	return before == nil || !equalContent(before, after), nil
}

// equalContent ignores what controllers may write between the two requests: the status and the owners of fields.
func equalContent(a, b *unstructured.Unstructured) bool {
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

// withLabel returns the object's JSON with the add-on's label. It does not change the object.
func withLabel(o objects.Object, addon string) ([]byte, error) {
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

// checkDistinct refuses two add-ons with the same name and an object in two add-ons, which would relabel it in turn for ever.
func checkDistinct(addons []objects.AddOn) error {
	names, owners := map[string]bool{}, map[id]string{}
	for _, addon := range addons {
		if names[addon.Name] {
			return fmt.Errorf("two add-ons have the name %s", addon.Name)
		}
		names[addon.Name] = true
		for _, o := range addon.Objects {
			key := idOf(o).key()
			if owner, ok := owners[key]; ok && owner != addon.Name {
				return fmt.Errorf("the add-ons %s and %s both contain %s", owner, addon.Name, o)
			}
			owners[key] = addon.Name
		}
	}
	return nil
}

// The inventory is a ConfigMap in kube-system. For each add-on it lists the objects that were ever applied for it and have not been
// deleted. It is written before the objects are applied, so that no crash leaves an object that is not listed. Without an
// inventory nothing is known, and nothing is deleted.
const inventoryName = "slipway-addons"

// id identifies an object in the inventory.
type id struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
}

func idOf(o objects.Object) id { return id{o.APIVersion(), o.Kind(), o.Namespace(), o.Name()} }

// key is the same for two ids of one object: the version of the API does not matter, and the default namespace may be omitted.
func (i id) key() id {
	i.APIVersion = schema.FromAPIVersionAndKind(i.APIVersion, i.Kind).Group
	if i.Namespace == metav1.NamespaceDefault {
		i.Namespace = ""
	}
	return i
}

func (i id) String() string { return strings.TrimPrefix(i.Namespace+"/", "/") + i.Name }

type inventory map[string][]id // by add-on

// record adds the objects that are about to be applied to the inventory, and returns the inventory before that.
func (a *applier) record(ctx context.Context, addons []objects.AddOn) (before inventory, err error) {
	waiting := onChange(func(why string) { a.report(Progress{Waiting: why}) })
	err = a.try(ctx, waiting, func() (err error) {
		before, err = a.readInventory(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read inventory: %w", err)
	}
	union := inventory{}
	for name, ids := range before {
		union[name] = ids
	}
	for _, addon := range addons {
		ids := slices.Clone(union[addon.Name])
		for _, o := range addon.Objects {
			if !slices.ContainsFunc(ids, func(i id) bool { return i.key() == idOf(o).key() }) {
				ids = append(ids, idOf(o))
			}
		}
		union[addon.Name] = ids
	}
	return before, a.writeInventory(ctx, before, union, waiting)
}

// prune deletes the objects that are in the inventory but not in the add-ons, and then removes them from the inventory.
func (a *applier) prune(ctx context.Context, addons []objects.AddOn, before inventory) error {
	want, wanted := inventory{}, map[id]bool{}
	for _, addon := range addons {
		want[addon.Name] = []id{}
		for _, o := range addon.Objects {
			want[addon.Name] = append(want[addon.Name], idOf(o))
			wanted[idOf(o).key()] = true
		}
	}
	for addon, ids := range before {
		for _, i := range slices.Backward(ids) {
			if wanted[i.key()] {
				continue
			}
			waiting := onChange(func(why string) { a.report(Progress{AddOn: addon, Object: i.Kind + " " + i.String(), Waiting: why}) })
			if err := a.try(ctx, waiting, func() error { return a.remove(ctx, addon, i) }); err != nil {
				return fmt.Errorf("delete %s %s of add-on %s: %w", i.Kind, i, addon, err)
			}
		}
	}
	return a.writeInventory(ctx, nil, want, func(string) {})
}

// remove deletes an object that still has the add-on's label. It keeps namespaces, definitions and volume claims: deleting them
// would also delete what users have put into them.
func (a *applier) remove(ctx context.Context, addon string, i id) error {
	p := Progress{AddOn: addon, Object: i.Kind + " " + i.String(), Done: true}
	if i.Kind == "Namespace" || i.Kind == "CustomResourceDefinition" || i.Kind == "PersistentVolumeClaim" {
		p.Kept = true
		a.report(p)
		return nil
	}
	in, err := a.resourceInterface(ctx, schema.FromAPIVersionAndKind(i.APIVersion, i.Kind), i.Namespace)
	if apierrors.IsNotFound(err) {
		return nil // the definition of its kind is gone, and so are all objects of the kind
	}
	if err != nil {
		return err
	}
	o, err := in.Get(ctx, i.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case o.GetLabels()[objects.Label] != addon:
		p.Kept = true
		a.report(p)
		return nil
	}
	uid, background := o.GetUID(), metav1.DeletePropagationBackground
	err = in.Delete(ctx, i.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &background})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	p.Removed = true
	a.report(p)
	return nil
}

// readInventory returns an empty inventory if there is none. A damaged entry is an error that trying again
// does not solve.
func (c *Client) readInventory(ctx context.Context) (inventory, error) {
	o, err := c.dyn.Resource(configMaps).Namespace(metav1.NamespaceSystem).Get(ctx, inventoryName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return inventory{}, nil
	}
	if err != nil {
		return nil, err
	}
	inv := inventory{}
	data, _ := o.Object["data"].(map[string]any)
	for addon, text := range data {
		var ids []id
		if s, ok := text.(string); !ok || json.Unmarshal([]byte(s), &ids) != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("the entry %q of ConfigMap kube-system/%s is damaged: repair it, or delete the "+
				"ConfigMap and then delete by hand the objects that are not wanted any more", addon, inventoryName))
		}
		inv[addon] = ids
	}
	return inv, nil
}

// writeInventory writes the inventory unless have, if not nil, is the same.
func (a *applier) writeInventory(ctx context.Context, have, want inventory, waiting func(string)) error {
	data := map[string]string{}
	same := have != nil && len(have) == len(want)
	for addon, ids := range want {
		text, err := json.Marshal(ids)
		if err != nil {
			return fmt.Errorf("encode inventory: %w", err)
		}
		data[addon] = string(text)
		same = same && slices.Equal(have[addon], ids)
	}
	if same {
		return nil
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": inventoryName, "namespace": metav1.NamespaceSystem}, "data": data,
	})
	if err != nil {
		return fmt.Errorf("encode inventory: %w", err)
	}
	in, force := a.dyn.Resource(configMaps).Namespace(metav1.NamespaceSystem), true
	err = a.try(ctx, waiting, func() error {
		_, err := in.Patch(ctx, inventoryName, types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: manager, Force: &force})
		return err
	})
	if err != nil {
		return fmt.Errorf("write inventory: %w", err)
	}
	return nil
}
