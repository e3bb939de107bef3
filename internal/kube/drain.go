// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
)

// evictionRetry is the time between two attempts to evict a pod that may not be evicted yet.
const evictionRetry = 2 * time.Second

var errDrained = errors.New("drained")

// Drain cordons the node and evicts its pods through the eviction API, which respects disruption budgets. Pods of DaemonSets, static
// pods and finished pods stay. It returns when the last evicted pod is gone, or after timeout with an error that lists the pods that
// are left. say is called with each thing that it does or waits for. An unknown node is [ErrNoNode].
//
// It does not use k8s.io/kubectl/pkg/drain: that polls pods, needs the typed clientset, and reports less about what it waits for.
func (c *Client) Drain(ctx context.Context, node string, timeout time.Duration, say func(string)) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := c.Cordon(ctx, node); err != nil {
		return err
	}
	working, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	d := &drainer{
		Client: c, say: say, done: func() { stop(errDrained) },
		left: map[string]*unstructured.Unstructured{}, reported: map[string]string{}, again: make(chan struct{}, 1),
	}
	q := query{resource: pods, fields: fields.OneTermEqualSelector("spec.nodeName", node), again: d.again, listed: func(begins bool) { d.list(working, begins) }}
	err := c.follow(working, q, func(why string) { say("pods cannot be watched: " + why) }, func(o *unstructured.Unstructured, gone bool) (bool, error) {
		d.observe(working, o, gone)
		return false, nil
	})
	if errors.Is(context.Cause(working), errDrained) {
		return nil
	}
	if left := d.remaining(); left != "" && ctx.Err() != nil {
		return fmt.Errorf("drain node %s: pods are left after %s: %s: %w", node, timeout, left, context.Cause(ctx))
	}
	return fmt.Errorf("drain node %s: %w", node, err)
}

// drainer evicts the pods of one node. Only follow calls it, one call at a time.
type drainer struct {
	*Client
	say  func(string)
	done func()

	listing  bool
	left     map[string]*unstructured.Unstructured // pods that have to be evicted
	reported map[string]string                     // the last message about each pod
	again    chan struct{}
}

// list is called before and after the pods of a list are observed. Evictions start only when the list is
// complete, so that Drain does not return early.
func (d *drainer) list(ctx context.Context, begins bool) {
	if d.listing = begins; begins {
		clear(d.left)
		return
	}
	d.evictAll(ctx)
}

// observe updates the set of pods that have to be evicted and continues the evictions, except within a list.
func (d *drainer) observe(ctx context.Context, o *unstructured.Unstructured, gone bool) {
	if o != nil {
		name := o.GetNamespace() + "/" + o.GetName()
		delete(d.left, name)
		switch {
		case gone && d.reported[name] != "":
			d.report(name, "is gone")
		case !gone && !stays(o):
			d.left[name] = o
		}
	}
	if !d.listing {
		d.evictAll(ctx)
	}
}

// stays reports whether a pod is not evicted: a static pod, a pod of a DaemonSet, or a finished pod.
func stays(o *unstructured.Unstructured) bool {
	if _, mirror := o.GetAnnotations()["kubernetes.io/config.mirror"]; mirror {
		return true
	}
	if owner := metav1.GetControllerOf(o); owner != nil && owner.Kind == "DaemonSet" {
		return true
	}
	phase := str(o.Object, "status", "phase")
	return o.GetDeletionTimestamp() == nil && (phase == "Succeeded" || phase == "Failed")
}

// report tells the caller of Drain about a pod, but never the same thing twice in a row.
func (d *drainer) report(name, what string) {
	if d.reported[name] != what {
		d.reported[name] = what
		d.say("pod " + name + " " + what)
	}
}

// evictAll evicts the pods that have not been evicted. It arranges another list if one of them may not be evicted yet.
func (d *drainer) evictAll(ctx context.Context) {
	if len(d.left) == 0 {
		d.done()
		return
	}
	retry := false
	for name, o := range d.left {
		if o.GetDeletionTimestamp() != nil {
			d.report(name, "is terminating")
			continue
		}
		if d.reported[name] == "" && metav1.GetControllerOf(o) == nil {
			d.report(name, "has no controller and will not be created again on another node")
		}
		switch err := d.evict(ctx, o); {
		case err == nil:
			d.report(name, "is evicted")
		case apierrors.IsNotFound(err) || apierrors.IsConflict(err): // it is gone, or another pod has its name
		case ctx.Err() == nil:
			d.report(name, "cannot be evicted yet: "+reason(err))
			retry = true
		}
	}
	if retry {
		time.AfterFunc(evictionRetry, func() {
			select {
			case d.again <- struct{}{}:
			default:
			}
		})
	}
}

// evict does not use client-go's own retries, which would wait silently for a disruption budget.
func (d *drainer) evict(ctx context.Context, o *unstructured.Unstructured) error {
	body, err := json.Marshal(map[string]any{
		"apiVersion": "policy/v1", "kind": "Eviction", "metadata": map[string]any{"name": o.GetName(), "namespace": o.GetNamespace()},
		"deleteOptions": map[string]any{"preconditions": map[string]any{"uid": string(o.GetUID())}},
	})
	if err != nil {
		return err
	}
	return d.rest.Post().AbsPath("/api/v1/namespaces", o.GetNamespace(), "pods", o.GetName(), "eviction").
		SetHeader("Content-Type", "application/json").MaxRetries(0).Body(body).Do(ctx).Error()
}

// remaining lists the pods that are left, with the last message about each.
func (d *drainer) remaining() string {
	var out []string
	for name := range d.left {
		out = append(out, "pod "+name+" ("+strings.TrimSpace(d.reported[name])+")")
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}
