// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// query says which objects are followed.
type query struct {
	resource  schema.GroupVersionResource
	namespace string
	fields    fields.Selector
	labels    string                                  // optional: a label that the objects must have
	listed    func(begins bool)                       // optional: is told when a list is going to be shown, and when it has been shown
	again     <-chan struct{}                         // optional: a signal to look at everything anew
	first     func(o *unstructured.Unstructured) bool // optional: what of a list is shown before the rest
}

func named(r schema.GroupVersionResource, namespace, name string) query {
	return query{resource: r, namespace: namespace, fields: fields.OneTermEqualSelector("metadata.name", name)}
}

func (q query) tell(begins bool) {
	if q.listed != nil {
		q.listed(begins)
	}
}

// sight is told of an object, or of one that is gone; of nil that is gone when there is none at all. It ends the following with
// done, whatever the error; an error without done makes it look again a little later.
type sight func(o *unstructured.Unstructured, gone bool) (done bool, err error)

// follow shows see everything that matches: first what exists, then each change. It lists anew when the watch breaks, so that
// see meets objects more than once, and deletions that fall into a break never. waiting is told why nothing can be seen.
func (c *Client) follow(ctx context.Context, q query, waiting func(string), see sight) error {
	var pace backoff
	last := ""
	for {
		started := time.Now()
		done, err := c.followOnce(ctx, q, see)
		if done {
			return err
		}
		if err != nil && ctx.Err() == nil {
			last = reason(err)
			waiting(last)
		}
		if ctx.Err() != nil {
			return ended(ctx, last)
		}
		if time.Since(started) > 2*lastPause {
			pace.reset()
		}
		if pace.pause(ctx) != nil {
			return ended(ctx, last)
		}
	}
}

// followOnce lists and then watches until the watch ends.
func (c *Client) followOnce(ctx context.Context, q query, see sight) (done bool, err error) {
	in := c.dyn.Resource(q.resource).Namespace(q.namespace)
	opts := metav1.ListOptions{}
	if q.fields != nil {
		opts.FieldSelector = q.fields.String()
	}
	opts.LabelSelector = q.labels
	found, err := in.List(ctx, opts)
	if err != nil {
		return false, err
	}
	q.tell(true)
	if len(found.Items) == 0 {
		if done, err := see(nil, true); done || err != nil {
			return done, err
		}
	}
	if q.first != nil {
		slices.SortStableFunc(found.Items, func(a, b unstructured.Unstructured) int {
			switch first := q.first(&a); {
			case first == q.first(&b):
				return 0
			case first:
				return -1
			}
			return 1
		})
	}
	for i := range found.Items {
		if done, err := see(&found.Items[i], false); done || err != nil {
			return done, err
		}
	}
	q.tell(false)
	opts.ResourceVersion, opts.AllowWatchBookmarks = found.GetResourceVersion(), true
	found = nil // the watch may last for hours
	w, err := in.Watch(ctx, opts)
	if err != nil {
		return false, err
	}
	defer w.Stop()
	return watched(ctx, w.ResultChan(), q.again, see)
}

func watched(ctx context.Context, changes <-chan watch.Event, again <-chan struct{}, see sight) (done bool, err error) {
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-again:
			return false, nil
		case e, ok := <-changes:
			if !ok {
				return false, nil // servers end watches now and then
			}
			switch e.Type {
			case watch.Bookmark:
			case watch.Error:
				return false, fmt.Errorf("watch: %w", apierrors.FromObject(e.Object))
			case watch.Added, watch.Modified, watch.Deleted:
				o, _ := e.Object.(*unstructured.Unstructured)
				if done, err := see(o, e.Type == watch.Deleted); done || err != nil {
					return done, err
				}
			}
		}
	}
}
