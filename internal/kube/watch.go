// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// query selects the objects that follow watches.
type query struct {
	resource  schema.GroupVersionResource
	namespace string
	fields    fields.Selector
	labels    string                                  // optional: a label selector
	listed    func(begins bool)                       // optional: called before and after the objects of a list are shown
	again     <-chan struct{}                         // optional: a value makes follow list everything again
	first     func(o *unstructured.Unstructured) bool // optional: objects of a list to show before the others
}

// named selects one object by its name.
func named(r schema.GroupVersionResource, namespace, name string) query {
	return query{resource: r, namespace: namespace, fields: fields.OneTermEqualSelector("metadata.name", name)}
}

func (q query) notify(begins bool) {
	if q.listed != nil {
		q.listed(begins)
	}
}

// handler handles an object, or one that was deleted. If a list is empty, it is called once with nil and gone. It ends follow by
// returning done; follow then returns err. An error without done makes follow list everything again after a pause.
type handler func(o *unstructured.Unstructured, gone bool) (done bool, err error)

// follow calls handle for every matching object: first for those that exist, then for each change. When the watch ends, it lists
// the objects again. So handle may see an object more than once, and it misses deletions between a watch and the next list.
// waiting is called with the reason why the objects cannot be watched.
//
// It is not built on client-go's informers or tools/watch: informers cache all objects, and a RetryWatcher does not list again
// when its resource version has expired.
func (c *Client) follow(ctx context.Context, q query, waiting func(string), handle handler) error {
	var pace backoff
	last := ""
	for {
		started := time.Now()
		done, err := c.listAndWatch(ctx, q, handle)
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
		if time.Since(started) > 2*maxPause {
			pace.reset()
		}
		if pace.pause(ctx) != nil {
			return ended(ctx, last)
		}
	}
}

// listAndWatch lists the objects and then watches until the watch ends.
func (c *Client) listAndWatch(ctx context.Context, q query, handle handler) (done bool, err error) {
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
	q.notify(true)
	if len(found.Items) == 0 {
		if done, err := handle(nil, true); done || err != nil {
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
		if done, err := handle(&found.Items[i], false); done || err != nil {
			return done, err
		}
	}
	q.notify(false)
	opts.ResourceVersion, opts.AllowWatchBookmarks = found.GetResourceVersion(), true
	found = nil // free the memory: the watch may last for hours
	w, err := in.Watch(ctx, opts)
	if err != nil {
		return false, err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-q.again:
			return false, nil
		case e, ok := <-w.ResultChan():
			if !ok {
				return false, nil // servers end watches from time to time
			}
			switch e.Type {
			case watch.Bookmark:
			case watch.Error:
				return false, fmt.Errorf("watch: %w", apierrors.FromObject(e.Object))
			case watch.Added, watch.Modified, watch.Deleted:
				o, _ := e.Object.(*unstructured.Unstructured)
				if done, err := handle(o, e.Type == watch.Deleted); done || err != nil {
					return done, err
				}
			}
		}
	}
}

// wait follows one object until why returns "". why returns the reason for waiting, or an error if waiting is pointless.
func (c *Client) wait(ctx context.Context, q query, what string, report func(string), why func(*unstructured.Unstructured) (string, error)) error {
	report = onChange(report)
	last := ""
	say := func(text string) { last = text; report(text) }
	err := c.follow(ctx, q, say, func(o *unstructured.Unstructured, gone bool) (bool, error) {
		if gone {
			say(what + " does not exist yet")
			return false, nil
		}
		text, err := why(o)
		if err != nil || text == "" {
			return true, err
		}
		say(text)
		return false, nil
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		err = ended(ctx, last)
	}
	return fmt.Errorf("wait for %s: %w", what, err)
}

// Unready returns the reason why the API server is not ready; "" if it is.
func (c *Client) Unready(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var code int
	body, err := c.rest.Get().AbsPath("/readyz").Param("verbose", "").Do(ctx).StatusCode(&code).Raw()
	if code == 200 {
		return ""
	}
	var failed []string
	for line := range strings.Lines(string(body)) { // "[-]poststarthook/rbac/bootstrap-roles failed: reason withheld"
		if name, ok := strings.CutPrefix(line, "[-]"); ok {
			name, _, _ = strings.Cut(name, " ")
			failed = append(failed, name)
		}
	}
	switch {
	case len(failed) > 0:
		return "the API server is not ready: " + strings.Join(failed, ", ")
	case err != nil:
		return reason(err)
	}
	return fmt.Sprintf("the API server is not ready: HTTP status %d", code)
}

// WatchDeployment calls say with the reason why the deployment is not available, at first and at each change, until ctx ends. The
// reason is "" if all replicas of the current template are available. It returns only the context's error.
func (c *Client) WatchDeployment(ctx context.Context, namespace, name string, say func(reason string)) error {
	say = onState(say)
	return c.follow(ctx, named(deployments, namespace, name), say, func(o *unstructured.Unstructured, gone bool) (bool, error) {
		if gone {
			say("deployment " + namespace + "/" + name + " does not exist")
			return false, nil
		}
		want := int64(1)
		if n, ok, _ := unstructured.NestedInt64(o.Object, "spec", "replicas"); ok {
			want = n
		}
		observed, _, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration")
		updated, _, _ := unstructured.NestedInt64(o.Object, "status", "updatedReplicas")
		available, _, _ := unstructured.NestedInt64(o.Object, "status", "availableReplicas")
		switch have := min(updated, available); {
		case observed < o.GetGeneration():
			say("the controller manager has not observed it yet")
		case have < want:
			say(fmt.Sprintf("%d of %d replicas are available", have, want))
		default:
			say("")
		}
		return false, nil
	})
}

// condition reports whether a condition of the object is true, and why not.
func condition(o *unstructured.Unstructured, name string) (ok bool, why string) {
	for _, c := range maps(o.Object, "status", "conditions") {
		if str(c, "type") != name {
			continue
		}
		if str(c, "status") == "True" {
			return true, ""
		}
		return false, joinReason(str(c, "reason"), str(c, "message"))
	}
	return false, "its condition " + name + " is not known yet"
}

// joinReason formats the reason and the message of a condition, either of which may be empty.
func joinReason(reason, message string) string {
	if reason != "" && message != "" {
		return reason + ": " + message
	}
	return reason + message
}

// str returns the string at a path, or "" if there is none.
func str(m map[string]any, path ...string) string {
	s, _, _ := unstructured.NestedString(m, path...)
	return s
}

// maps returns the elements of a list that are maps.
func maps(m map[string]any, path ...string) (out []map[string]any) {
	items, _, _ := unstructured.NestedFieldNoCopy(m, path...)
	list, _ := items.([]any)
	for _, item := range list {
		if fields, ok := item.(map[string]any); ok {
			out = append(out, fields)
		}
	}
	return out
}

// onChange returns a function that calls report if the text differs from the last one. Calls must not overlap.
func onChange(report func(string)) func(string) {
	last := ""
	return func(text string) {
		if report != nil && text != last {
			last = text
			report(text)
		}
	}
}

// onState is like onChange, but it always reports the first text, even if it is empty.
func onState(report func(string)) func(string) {
	last, reported := "", false
	return func(text string) {
		if !reported || text != last {
			last, reported = text, true
			report(text)
		}
	}
}
