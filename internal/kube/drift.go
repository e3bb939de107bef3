// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	gomaps "maps"
	"slices"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/slipway-project/slipway/internal/core/objects"
)

// WatchDrift calls changed, until ctx ends, whenever an object of the add-ons is deleted, created again or changed since it was
// last seen. The caller should then call Apply again. Changes made by Apply itself are reported too. The first list of objects is
// the baseline; objects missing in it are reported. It returns only the context's error.
func (c *Client) WatchDrift(ctx context.Context, addons []objects.AddOn, changed func(object string)) error {
	kinds := map[schema.GroupVersionKind][]string{}
	for _, addon := range addons {
		for _, o := range addon.Objects {
			kinds[gvkOf(o)] = append(kinds[gvkOf(o)], objectKey(o.Namespace(), o.Name()))
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	for gvk, names := range kinds {
		group.Go(func() error { return c.watchDrift(ctx, gvk, names, changed) })
	}
	<-ctx.Done() // without objects to watch, too
	_ = group.Wait()
	return context.Cause(ctx)
}

// watchDrift watches the objects of one kind.
func (c *Client) watchDrift(ctx context.Context, gvk schema.GroupVersionKind, names []string, changed func(string)) error {
	var r resource
	var pace backoff
	for { // the definition of the kind may not exist yet, or may have been deleted
		var err error
		if r, err = c.resource(ctx, gvk); err == nil {
			break
		}
		if err := pace.pause(ctx); err != nil {
			return err
		}
	}
	d := drift{kind: gvk.Kind, namespaced: r.namespaced, seen: map[string]string{}, listed: map[string]string{}, changed: changed}
	for _, name := range names {
		d.seen[d.key(name)] = ""
	}
	q := query{resource: gvk.GroupVersion().WithResource(r.name), labels: objects.Label, listed: d.compare}
	return c.follow(ctx, q, func(string) {}, func(o *unstructured.Unstructured, gone bool) (bool, error) {
		d.observe(o, gone)
		return false, nil
	})
}

// drift remembers the versions of one kind's objects.
type drift struct {
	kind       string
	namespaced bool
	seen       map[string]string // by object; "" until the object is first seen, "gone" after it was deleted
	listed     map[string]string // the versions in the current list; nil while changes are watched
	changed    func(string)
}

func objectKey(namespace, name string) string { return namespace + "/" + name }

// key turns the key of an object in a manifest into the key of the object on the server.
func (d *drift) key(name string) string {
	if d.namespaced && name[0] == '/' {
		return "default" + name
	}
	return name
}

// observe handles an object of a list or a change of an object.
func (d *drift) observe(o *unstructured.Unstructured, gone bool) {
	if o == nil {
		return // an empty list; compare is called next
	}
	key, version := objectKey(o.GetNamespace(), o.GetName()), version(o)
	switch _, known := d.seen[key]; {
	case d.listed != nil:
		d.listed[key] = version
		return
	case gone && known:
		d.seen[key] = "gone"
		d.report(key)
		return
	case gone:
		return
	case d.seen[key] != version:
		d.seen[key] = version
		d.report(key)
	}
}

// compare is called before and after a list. After the list it reports what is missing and what has changed since the last list.
func (d *drift) compare(begins bool) {
	if begins {
		d.listed = map[string]string{}
		return
	}
	for _, key := range slices.Sorted(gomaps.Keys(d.seen)) {
		if now, ok := d.listed[key]; !ok || d.seen[key] != "" && d.seen[key] != now {
			d.report(key)
		}
	}
	for key := range d.seen {
		if _, ok := d.listed[key]; !ok {
			d.listed[key] = "gone"
		}
	}
	d.seen, d.listed = d.listed, nil
}

func (d *drift) report(key string) { d.changed(d.kind + " " + key) }

// version changes with the content of an object. It does not change with the status if the server counts generations.
func version(o *unstructured.Unstructured) string {
	if g := o.GetGeneration(); g > 0 {
		return fmt.Sprintf("%s %d %v", o.GetUID(), g, o.GetLabels())
	}
	return o.GetResourceVersion()
}
