// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/slipway-project/slipway/internal/sleep"
)

// ElectConfig configures an election. The defaults of the three durations are those of Kubernetes' own components.
type ElectConfig struct {
	Namespace, Name string // of the Lease
	Identity        string // of the candidate; must be unique. A candidate that finds its own identity in the lease takes it at once

	Lease time.Duration // default 15 s: other candidates wait this long after the last renewal that they have seen
	Renew time.Duration // default 10 s: the leader stops this long after the last successful renewal was sent
	Retry time.Duration // default 2 s: time between renewals, and between two checks of another's lease

	// Follow, optional, is called at each change with the holder of the lease, or with the reason why it is unknown. Calls never
	// overlap.
	Follow func(holder, why string)
}

func (c ElectConfig) withDefaults() ElectConfig {
	if c.Lease == 0 {
		c.Lease, c.Renew, c.Retry = 15*time.Second, 10*time.Second, 2*time.Second
	}
	if c.Follow == nil {
		c.Follow = func(string, string) {}
	}
	return c
}

// Reasons for the end of a term.
var (
	errNotRenewed = errors.New("the lease could not be renewed in time")
	errTaken      = errors.New("the lease is held by another candidate")
	errReturned   = errors.New("the leader's work has returned")
)

// Elect waits until the lease is free, acquires it and calls lead. The context of lead ends before another candidate can become the
// leader. When the lease is lost, Elect waits for lead to return and then waits for the lease again. It returns the result of lead
// if lead returns while the lease is held, or else the context's error. In both cases it releases the lease, so that another
// candidate can become the leader at once.
//
// It does not use client-go's tools/leaderelection, which neither waits for the leader's work to return nor tells until when the
// lease is certainly held (see [Fence]), and which needs the typed clientset.
func (c *Client) Elect(ctx context.Context, cfg ElectConfig, lead func(ctx context.Context, fence Fence) error) error {
	e := elector{Client: c, cfg: cfg.withDefaults()}
	if e.cfg.Identity == "" || e.cfg.Renew >= e.cfg.Lease || e.cfg.Retry >= e.cfg.Renew {
		return fmt.Errorf("elect leader: want an identity and retry < renew < lease, got identity %q, retry %s, renew %s, lease %s", e.cfg.Identity, e.cfg.Retry, e.cfg.Renew, e.cfg.Lease)
	}
	for {
		if err := e.acquire(ctx); err != nil {
			return err
		}
		why, err := e.lead(ctx, lead)
		switch {
		case errors.Is(why, errReturned):
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		c.log.Warn("leadership lost", "lease", cfg.Name, "why", why)
		e.follow("", why.Error())
	}
}

// elector is the state of one call of Elect. Only one goroutine uses it at a time.
type elector struct {
	*Client
	cfg ElectConfig

	mine term // the lease as this process wrote it last

	seen        string // version of another candidate's lease
	seenAt      time.Time
	holder, why string // last call of Follow
	reported    bool
}

// follow calls the Follow function of the configuration if something has changed.
func (e *elector) follow(holder, why string) {
	if !e.reported || holder != e.holder || why != e.why {
		e.holder, e.why, e.reported = holder, why, true
		e.cfg.Follow(holder, why)
	}
}

// acquire waits until the lease is held.
func (e *elector) acquire(ctx context.Context) error {
	var pace backoff
	for {
		wait, err := e.take(ctx)
		switch {
		case ctx.Err() != nil:
			return ended(ctx, e.why)
		case err == nil && wait == 0:
			return nil
		case err != nil:
			e.follow("", reason(err))
			if pace.pause(ctx) != nil {
				return ended(ctx, e.why)
			}
			continue
		}
		pace.reset()
		if sleep.For(ctx, wait) != nil {
			return ended(ctx, e.why)
		}
	}
}

// lead calls work until the lease is lost, ctx ends or work returns. why says which of them; err is the result of work.
func (e *elector) lead(ctx context.Context, work func(context.Context, Fence) error) (why, err error) {
	h := &held{lease: e.cfg.Lease, renew: e.cfg.Renew}
	h.renewed(e.mine.asked)
	e.follow(e.cfg.Identity, "")
	e.log.Info("leadership acquired", "lease", e.cfg.Name, "identity", e.cfg.Identity)

	leading, end := context.WithCancelCause(ctx)
	defer end(nil)
	var group errgroup.Group
	group.Go(func() error {
		err := work(leading, Fence{h})
		end(errReturned) // no effect if the context has already ended
		return err
	})
	end(e.keep(leading, h))
	err = group.Wait()
	why = context.Cause(leading)
	h.finish()
	if errors.Is(why, errReturned) || ctx.Err() != nil {
		e.release(ctx)
	}
	return why, err
}

// keep renews the lease until ctx ends or the lease is lost, and returns the reason.
func (e *elector) keep(ctx context.Context, h *held) error {
	expired := time.NewTimer(h.left())
	defer expired.Stop()
	tick := time.NewTicker(e.cfg.Retry)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-expired.C:
			return errNotRenewed
		case <-tick.C:
		}
		limited, cancel := context.WithTimeoutCause(ctx, h.left(), errNotRenewed)
		err := e.renew(limited)
		cancel()
		switch {
		case err == nil:
			h.renewed(e.mine.asked)
			expired.Reset(h.left())
		case errors.Is(err, errTaken):
			return err
		case ctx.Err() == nil:
			e.log.Warn("lease not renewed", "lease", e.cfg.Name, "why", reason(err), "left", h.left())
		}
	}
}

const (
	leaseTimeout   = 3 * time.Second // of one attempt: after two that hang, a leader has time for a third
	releaseTimeout = 2 * time.Second // without a release, others wait until the lease expires
	maxLease       = time.Minute     // longer durations in another candidate's lease are ignored
)

// term is one term of this process as the leader. Each acquisition increments the number of transitions, which distinguishes the
// lease from an earlier one of the same identity.
type term struct {
	object      *unstructured.Unstructured
	transitions int64
	asked       time.Time // a time before the last write was sent
}

func (e *elector) leases() dynamic.ResourceInterface {
	return e.dyn.Resource(leases).Namespace(e.cfg.Namespace)
}

// take makes one attempt to acquire the lease. wait is 0 if it is held now, otherwise the time until the next attempt makes sense.
func (e *elector) take(ctx context.Context) (wait time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
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
	if left := e.duration(o) - time.Since(e.seenAt); holder != "" && holder != e.cfg.Identity && left > 0 {
		e.follow(holder, "")
		return min(e.cfg.Retry, left), nil
	}
	transitions, _, _ := unstructured.NestedInt64(o.Object, "spec", "leaseTransitions")
	return raced(e.write(ctx, o, e.spec(transitions+1, time.Now())))
}

// raced turns the conflict of a write with another into a short wait.
func raced(err error) (wait time.Duration, _ error) {
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return firstPause, nil
	}
	return 0, err
}

// duration returns how long another candidate's lease is valid after its last renewal.
func (e *elector) duration(o *unstructured.Unstructured) time.Duration {
	seconds, _, _ := unstructured.NestedInt64(o.Object, "spec", "leaseDurationSeconds")
	return max(e.cfg.Lease, min(time.Duration(seconds)*time.Second, maxLease))
}

// spec returns the spec of the Lease with this candidate as the holder, renewed now.
func (e *elector) spec(transitions int64, acquired time.Time) map[string]any {
	return map[string]any{
		"holderIdentity": e.cfg.Identity, "leaseTransitions": transitions, "acquireTime": microTime(acquired), "renewTime": microTime(time.Now()),
		"leaseDurationSeconds": int64((e.cfg.Lease + time.Second - 1) / time.Second),
	}
}

func microTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z07:00") }

// create creates the Lease with this candidate as the holder.
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

// write replaces the lease if it has not changed since it was read.
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

// wrote remembers the Lease as the server returned it. asked is a time before the request was sent.
func (e *elector) wrote(o *unstructured.Unstructured, asked time.Time) {
	transitions, _, _ := unstructured.NestedInt64(o.Object, "spec", "leaseTransitions")
	e.mine = term{object: o, transitions: transitions, asked: asked}
}

// renew extends the lease. After the lost response of an earlier renewal, the write conflicts with our own, so that renew has to
// check whose lease it is.
func (e *elector) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	err := e.rewrite(ctx, e.mine.object)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w: the Lease was deleted", errTaken)
	case !apierrors.IsConflict(err):
		return err
	}
	o, err := e.leases().Get(ctx, e.cfg.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	transitions, _, _ := unstructured.NestedInt64(o.Object, "spec", "leaseTransitions")
	if holder := str(o.Object, "spec", "holderIdentity"); holder != e.cfg.Identity || transitions != e.mine.transitions {
		return fmt.Errorf("%w: %q", errTaken, holder)
	}
	return e.rewrite(ctx, o)
}

// rewrite renews the Lease that was read and keeps the time of the acquisition.
func (e *elector) rewrite(ctx context.Context, read *unstructured.Unstructured) error {
	spec := e.spec(e.mine.transitions, time.Now())
	spec["acquireTime"] = str(read.Object, "spec", "acquireTime")
	return e.write(ctx, read, spec)
}

// release frees the lease after the leader's work has returned. An error is only logged: others can acquire the lease when it
// expires.
func (e *elector) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	spec := e.spec(e.mine.transitions, time.Now())
	spec["holderIdentity"], spec["leaseDurationSeconds"] = "", int64(1)
	if err := e.write(ctx, e.mine.object, spec); err != nil {
		e.log.Info("lease not released", "lease", e.cfg.Name, "why", reason(err))
	}
}
