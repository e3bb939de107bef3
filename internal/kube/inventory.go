// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-project/slipway/internal/core/objects"
)

// The inventory is a ConfigMap in kube-system: for each add-on the objects that were ever applied for it and not yet removed.
// It is written before the objects, so that no cut leaves one that nobody remembers. An inventory that is not there means that
// nothing is known, and nothing is removed.
const inventoryName = "slipway-addons"

// id says which object is meant. It is what the inventory holds.
type id struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
}

func idOf(o objects.Object) id { return id{o.APIVersion(), o.Kind(), o.Namespace(), o.Name()} }

// sameness leaves the version out: v1beta1 and v1 are two views of one object.
func (i id) sameness() id {
	i.APIVersion = schema.FromAPIVersionAndKind(i.APIVersion, i.Kind).Group
	if i.Namespace == metav1.NamespaceDefault {
		i.Namespace = ""
	}
	return i
}

func (i id) String() string { return strings.TrimPrefix(i.Namespace+"/", "/") + i.Name }

type inventory map[string][]id // by add-on

// record writes down what is about to be applied, beside what was before, and returns what was before.
func (a *applier) record(ctx context.Context, addons []objects.AddOn) (before inventory, err error) {
	waiting := onChange(func(why string) { a.tell(Progress{Waiting: why}) })
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
			if !slices.ContainsFunc(ids, func(i id) bool { return i.sameness() == idOf(o).sameness() }) {
				ids = append(ids, idOf(o))
			}
		}
		union[addon.Name] = ids
	}
	return before, a.writeInventory(ctx, before, union, waiting)
}

// prune removes what the inventory has and the add-ons do not, and forgets it.
func (a *applier) prune(ctx context.Context, addons []objects.AddOn, before inventory) error {
	want, wanted := inventory{}, map[id]bool{}
	for _, addon := range addons {
		want[addon.Name] = []id{}
		for _, o := range addon.Objects {
			want[addon.Name] = append(want[addon.Name], idOf(o))
			wanted[idOf(o).sameness()] = true
		}
	}
	for addon, ids := range before {
		for _, i := range slices.Backward(ids) {
			if wanted[i.sameness()] {
				continue
			}
			waiting := onChange(func(why string) { a.tell(Progress{AddOn: addon, Object: i.Kind + " " + i.String(), Waiting: why}) })
			if err := a.try(ctx, waiting, func() error { return a.remove(ctx, addon, i) }); err != nil {
				return fmt.Errorf("remove %s %s of add-on %s: %w", i.Kind, i, addon, err)
			}
		}
	}
	return a.writeInventory(ctx, nil, want, func(string) {})
}

// remove deletes an object that carries the add-on's label. Namespaces, definitions and volume claims stay: with them would go
// what users have put there.
func (a *applier) remove(ctx context.Context, addon string, i id) error {
	p := Progress{AddOn: addon, Object: i.Kind + " " + i.String(), Done: true}
	if i.Kind == "Namespace" || i.Kind == "CustomResourceDefinition" || i.Kind == "PersistentVolumeClaim" {
		p.Kept = true
		a.tell(p)
		return nil
	}
	in, err := a.where(ctx, schema.FromAPIVersionAndKind(i.APIVersion, i.Kind), i.Namespace)
	if apierrors.IsNotFound(err) {
		return nil // its definition is gone, and so are its objects
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
		a.tell(p)
		return nil
	}
	uid, background := o.GetUID(), metav1.DeletePropagationBackground
	err = in.Delete(ctx, i.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &background})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	p.Removed = true
	a.tell(p)
	return nil
}

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
			return nil, apierrors.NewBadRequest(fmt.Sprintf("the entry %q of ConfigMap kube-system/%s is damaged: mend it, or delete the "+
				"ConfigMap and remove by hand what is no longer wanted", addon, inventoryName))
		}
		inv[addon] = ids
	}
	return inv, nil
}

// writeInventory writes unless have is known to be the same.
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
