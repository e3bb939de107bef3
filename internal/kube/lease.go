// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
)

const (
	leaseLimit = 3 * time.Second // for one look or write: two that hang leave time for a third before a leader gives up
	giveBack   = 2 * time.Second // for giving it back: others wait no longer than its end
	trusted    = time.Minute     // no longer than that is another's word on how long its lease lasts believed
)

// term is the lease of one leader from its taking to its loss. Each taking counts the transitions up, so that one's own old
// lease is known from one's new one.
type term struct {
	object      *unstructured.Unstructured
	transitions int64
	asked       time.Time // before the last write was sent
}

func (e *elector) leases() dynamic.ResourceInterface {
	return e.dyn.Resource(leases).Namespace(e.cfg.Namespace)
}

// take makes one try to get the lease. wait is 0 when it is held, otherwise how long nothing will change by waiting.
func (e *elector) take(ctx context.Context) (wait time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, leaseLimit)
	defer cancel()
	o, err := e.leases().Get(ctx, e.cfg.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return raced(e.create(ctx))
	}
	if err != nil {
		return 0, err
	}
	if version := string(o.GetUID()) + o.GetResourceVersion(); version != e.seen {
		e.seen, e.seenAt = version, time.Now()
	}
	holder := str(o.Object, "spec", "holderIdentity")
	if left := e.lasts(o) - time.Since(e.seenAt); holder != "" && holder != e.cfg.Identity && left > 0 {
		e.follow(holder, "")
		return min(e.cfg.Retry, left), nil
	}
	transitions, _, _ := unstructured.NestedInt64(o.Object, "spec", "leaseTransitions")
	return raced(e.write(ctx, o, e.spec(transitions+1, time.Now())))
}

// raced makes of a write that came too late a reason to look again soon.
func raced(err error) (wait time.Duration, _ error) {
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return firstPause, nil
	}
	return 0, err
}

// lasts is how long another's lease is left alone.
func (e *elector) lasts(o *unstructured.Unstructured) time.Duration {
	seconds, _, _ := unstructured.NestedInt64(o.Object, "spec", "leaseDurationSeconds")
	return max(e.cfg.Lease, min(time.Duration(seconds)*time.Second, trusted))
}

func (e *elector) spec(transitions int64, acquired time.Time) map[string]any {
	return map[string]any{
		"holderIdentity": e.cfg.Identity, "leaseTransitions": transitions, "acquireTime": microTime(acquired), "renewTime": microTime(time.Now()),
		"leaseDurationSeconds": int64((e.cfg.Lease + time.Second - 1) / time.Second),
	}
}

func microTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z07:00") }

func (e *elector) create(ctx context.Context) error {
	asked := time.Now()
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
		"metadata": map[string]any{"name": e.cfg.Name, "namespace": e.cfg.Namespace}, "spec": e.spec(0, asked),
	}}
	written, err := e.leases().Create(ctx, o, metav1.CreateOptions{FieldManager: manager})
	if err != nil {
		return err
	}
	e.wrote(written, asked)
	return nil
}

// write replaces the lease that was read, and nothing that came after it.
func (e *elector) write(ctx context.Context, read *unstructured.Unstructured, spec map[string]any) error {
	asked := time.Now()
	o := read.DeepCopy()
	o.Object["spec"] = spec
	written, err := e.leases().Update(ctx, o, metav1.UpdateOptions{FieldManager: manager})
	if err != nil {
		return err
	}
	e.wrote(written, asked)
	return nil
}

func (e *elector) wrote(o *unstructured.Unstructured, asked time.Time) {
	transitions, _, _ := unstructured.NestedInt64(o.Object, "spec", "leaseTransitions")
	e.mine = term{object: o, transitions: transitions, asked: asked}
}

// renew writes the lease anew. A lost answer to an earlier renewal looks like somebody else's write: what is there tells.
func (e *elector) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leaseLimit)
	defer cancel()
	err := e.rewrite(ctx, e.mine.object)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w: it was deleted", errTaken)
	case !apierrors.IsConflict(err):
		return err
	}
	o, err := e.leases().Get(ctx, e.cfg.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	transitions, _, _ := unstructured.NestedInt64(o.Object, "spec", "leaseTransitions")
	if holder := str(o.Object, "spec", "holderIdentity"); holder != e.cfg.Identity || transitions != e.mine.transitions {
		return fmt.Errorf("%w: %q leads", errTaken, holder)
	}
	return e.rewrite(ctx, o)
}

func (e *elector) rewrite(ctx context.Context, read *unstructured.Unstructured) error {
	spec := e.spec(e.mine.transitions, time.Now())
	spec["acquireTime"] = str(read.Object, "spec", "acquireTime")
	return e.write(ctx, read, spec)
}

// release gives the lease back when nothing works under it any more. Without it others wait until it has ended, so an error is
// no trouble.
func (e *elector) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBack)
	defer cancel()
	spec := e.spec(e.mine.transitions, time.Now())
	spec["holderIdentity"], spec["leaseDurationSeconds"] = "", int64(1)
	if err := e.write(ctx, e.mine.object, spec); err != nil {
		e.log.Info("lease is not given back", "lease", e.cfg.Name, "why", reason(err))
	}
}
