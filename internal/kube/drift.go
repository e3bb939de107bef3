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

// WatchDrift calls changed, for as long as ctx lasts, when an object of the add-ons is gone, is back, or has another content
// than when it was last seen: then it is time to apply again. What is written by Apply itself is seen too. It begins with what
// is there, and misses no object of which there is nothing. It returns only the context's error.
func (c *Client) WatchDrift(ctx context.Context, addons []objects.AddOn, changed func(object string)) error {
	kinds := map[schema.GroupVersionKind][]string{}
	for _, addon := range addons {
		for _, o := range addon.Objects {
			kinds[gvkOf(o)] = append(kinds[gvkOf(o)], place(o.Namespace(), o.Name()))
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	for gvk, names := range kinds {
		group.Go(func() error { return c.driftOf(ctx, gvk, names, changed) })
	}
	<-ctx.Done() // also where there is nothing to watch
	_ = group.Wait()
	return context.Cause(ctx)
}

func (c *Client) driftOf(ctx context.Context, gvk schema.GroupVersionKind, names []string, changed func(string)) error {
	var r resource
	var pace backoff
	for { // a kind of a definition that is not there yet, or no longer
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
		d.see(o, gone)
		return false, nil
	})
}

// drift remembers the content of one kind's objects, as far as it takes to see that it changes.
type drift struct {
	kind       string
	namespaced bool
	seen       map[string]string // object to version; an empty version is one that nobody has seen
	listed     map[string]string // what a list under way has shown; nil while changes are watched
	changed    func(string)
}

func place(namespace, name string) string { return namespace + "/" + name }

// key gives an object of the manifest the name that the server has for it.
func (d *drift) key(name string) string {
	if d.namespaced && name[0] == '/' {
		return "default" + name
	}
	return name
}

func (d *drift) see(o *unstructured.Unstructured, gone bool) {
	if o == nil {
		return // an empty list; compare comes next
	}
	key, version := place(o.GetNamespace(), o.GetName()), version(o)
	switch _, known := d.seen[key]; {
	case d.listed != nil:
		d.listed[key] = version
		return
	case gone && known:
		d.seen[key] = "gone"
		d.tell(key)
		return
	case gone:
		return
	case d.seen[key] != version:
		d.seen[key] = version
		d.tell(key)
	}
}

// compare ends a list: what is missing in it and what has changed since the one before.
func (d *drift) compare(begins bool) {
	if begins {
		d.listed = map[string]string{}
		return
	}
	for _, key := range slices.Sorted(gomaps.Keys(d.seen)) {
		if now, ok := d.listed[key]; !ok || d.seen[key] != "" && d.seen[key] != now {
			d.tell(key)
		}
	}
	for key := range d.seen {
		if _, ok := d.listed[key]; !ok {
			d.listed[key] = "gone"
		}
	}
	d.seen, d.listed = d.listed, nil
}

func (d *drift) tell(key string) { d.changed(d.kind + " " + key) }

// version changes with the content, and not with the status where the server tells the two apart.
func version(o *unstructured.Unstructured) string {
	if g := o.GetGeneration(); g > 0 {
		return fmt.Sprintf("%s %d %v", o.GetUID(), g, o.GetLabels())
	}
	return o.GetResourceVersion()
}
