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

// askEviction is between two tries to evict a pod that may not go yet.
const askEviction = 2 * time.Second

var errDrained = errors.New("drained")

// Drain keeps new pods away from the node and moves away those that are there, by the eviction API, which heeds disruption
// budgets. The pods of DaemonSets, the kubelet's own and finished ones stay. It returns when the last has gone, or after
// timeout with what is left; say is told each thing that it does or waits for. An unknown node is [ErrNoNode].
func (c *Client) Drain(ctx context.Context, node string, timeout time.Duration, say func(string)) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := c.Cordon(ctx, node); err != nil {
		return err
	}
	working, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	d := &drainer{Client: c, say: say, done: func() { stop(errDrained) }, left: map[string]*unstructured.Unstructured{}, told: map[string]string{}, again: make(chan struct{}, 1)}
	q := query{resource: pods, fields: fields.OneTermEqualSelector("spec.nodeName", node), again: d.again, listed: func(begins bool) { d.list(working, begins) }}
	err := c.follow(working, q, func(why string) { say("pods cannot be seen: " + why) }, func(o *unstructured.Unstructured, gone bool) (bool, error) {
		d.see(working, o, gone)
		return false, nil
	})
	if errors.Is(context.Cause(working), errDrained) {
		return nil
	}
	if left := d.remains(); left != "" && ctx.Err() != nil {
		return fmt.Errorf("drain node %s: after %s there still are %s: %w", node, timeout, left, context.Cause(ctx))
	}
	return fmt.Errorf("drain node %s: %w", node, err)
}

// drainer sees the pods of one node and evicts them. Only the follower calls it, one call at a time.
type drainer struct {
	*Client
	say  func(string)
	done func()

	listing bool
	left    map[string]*unstructured.Unstructured // pods that have to go
	told    map[string]string                     // the last word about each
	again   chan struct{}
}

func (d *drainer) list(ctx context.Context, begins bool) {
	if d.listing = begins; begins {
		clear(d.left)
		return
	}
	d.work(ctx)
}

func (d *drainer) see(ctx context.Context, o *unstructured.Unstructured, gone bool) {
	if o != nil {
		name := o.GetNamespace() + "/" + o.GetName()
		delete(d.left, name)
		switch {
		case gone && d.told[name] != "":
			d.tell(name, "has gone")
		case !gone && stays(o) == "":
			d.left[name] = o
		}
	}
	if !d.listing {
		d.work(ctx)
	}
}

// stays is the reason why a pod is left where it is.
func stays(o *unstructured.Unstructured) string {
	if _, mirror := o.GetAnnotations()["kubernetes.io/config.mirror"]; mirror {
		return "it is the kubelet's own"
	}
	if owner := metav1.GetControllerOf(o); owner != nil && owner.Kind == "DaemonSet" {
		return "it is of a DaemonSet"
	}
	if phase := str(o.Object, "status", "phase"); o.GetDeletionTimestamp() == nil && (phase == "Succeeded" || phase == "Failed") {
		return "it has finished"
	}
	return ""
}

func (d *drainer) tell(name, what string) {
	if d.told[name] != what {
		d.told[name] = what
		d.say("pod " + name + " " + what)
	}
}

// work evicts what has not been evicted, and is called again when one of them may not go yet.
func (d *drainer) work(ctx context.Context) {
	if len(d.left) == 0 {
		d.done()
		return
	}
	later := false
	for name, o := range d.left {
		if o.GetDeletionTimestamp() != nil {
			d.tell(name, "is ending")
			continue
		}
		if d.told[name] == "" && metav1.GetControllerOf(o) == nil {
			d.tell(name, "has no controller: nobody makes it again elsewhere")
		}
		switch err := d.evict(ctx, o); {
		case err == nil:
			d.tell(name, "is evicted")
		case apierrors.IsNotFound(err) || apierrors.IsConflict(err): // it has gone, or another has its name
		case ctx.Err() == nil:
			d.tell(name, "does not go yet: "+reason(err))
			later = true
		}
	}
	if later {
		time.AfterFunc(askEviction, func() {
			select {
			case d.again <- struct{}{}:
			default:
			}
		})
	}
}

// evict asks without client-go's own retries, which would wait in silence when a budget refuses.
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

// remains lists what has not gone, with the last word about each.
func (d *drainer) remains() string {
	var out []string
	for name := range d.left {
		out = append(out, "pod "+name+" ("+strings.TrimSpace(d.told[name])+")")
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}
