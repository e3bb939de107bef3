// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"errors"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/sleep"
)

// RolloutLease is held by at most one machine of a cluster. Its holder may replace running entries that are marked as rolling.
type RolloutLease interface {
	// Acquire blocks until this machine holds the lease for the item, and calls waiting each time the reason for waiting changes. It
	// is called from the goroutine of the item, for several items at once. It returns an error only when ctx ends. release is called
	// once, when the item is ready again or is given up; it does not block.
	Acquire(ctx context.Context, item string, waiting func(wait.For)) (release func(), err error)
	// Keep keeps the lease if this machine holds it for this item, perhaps since before its agent started; it does not acquire it
	// and does not block. It is called for all rolling items before anything is done; release as for Acquire.
	Keep(item string) (release func())
}

// errNeedsLease: the entry differs and runs, and may be replaced only by the holder of the rollout lease.
var errNeedsLease = errors.New("needs the rollout lease")

// hold is what one entry has of the rollout lease during a run.
type hold struct {
	mine     bool
	releases []func()
}

// may reports whether a step is allowed now. Starting a stopped item, or replacing one that has been down for long, needs no lease,
// because it makes nothing unavailable.
func (h *hold) may(l *Loop, e plan.Entry, step plan.Step, s plan.State) bool {
	return l.Rollout == nil || !e.Rolling || step.Verb != plan.Replace || s.Down || h.mine
}

// end releases what was acquired and kept.
func (h *hold) end() {
	for _, release := range h.releases {
		release()
	}
	*h = hold{}
}

// keep keeps the lease that an earlier agent acquired for the entry. Without it, the next machine would start its rollout before
// this one has recovered.
func (h *hold) keep(l *Loop, e plan.Entry) {
	if l.Rollout != nil && e.Rolling {
		h.releases = append(h.releases, l.Rollout.Keep(e.Ref.String()))
	}
}

// lookWhileWaiting is the interval at which an item that waits for the lease is observed. An item that has died does not need the
// lease any more.
const lookWhileWaiting = time.Second

// acquire waits for the lease, or until the entry does not need it any more.
func (r *run) acquire(ctx context.Context, e plan.Entry, h *hold) error {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		defer cancel()
		r.untilNotNeeded(waiting, e)
	}()
	defer func() { cancel(); <-watched }()
	ref := e.Ref.String()
	release, err := r.Rollout.Acquire(waiting, ref, func(w wait.For) {
		w.What = "the rollout lease: " + w.What
		r.Board.Set(Status{Ref: ref, Phase: Waiting, For: w})
	})
	switch {
	case err == nil:
		h.mine, h.releases = true, append(h.releases, release)
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case waiting.Err() != nil:
		return nil // it is observed again, and then does not need the lease
	}
	return err
}

// untilNotNeeded returns when the entry may be done without the lease, or when ctx ends.
func (r *run) untilNotNeeded(ctx context.Context, e plan.Entry) {
	var none hold
	for sleep.For(ctx, lookWhileWaiting) == nil {
		state, err := r.observe(ctx, e)
		if err != nil {
			continue // unknown is not down
		}
		if step, ok := plan.Next(e, state); !ok && state.Existence != plan.Unknown || ok && none.may(r.Loop, e, step, state) {
			return
		}
	}
}

func (r *run) observe(ctx context.Context, e plan.Entry) (plan.State, error) {
	ctx, cancel := context.WithTimeout(ctx, deadline(e))
	defer cancel()
	return r.Host.Observe(ctx, e)
}
