// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/core/objects"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/reconcile"
)

const (
	// lookAgain is for what no watch shows: what changed before it began.
	lookAgain = 10 * time.Minute
	// firstRest and longestRest are between two applies. Whoever deletes, deletes several objects; and whoever keeps changing
	// what we keep changing must not be fought at full speed.
	firstRest   = 500 * time.Millisecond
	longestRest = time.Minute
)

// apply brings the add-ons to the cluster and keeps them there: what somebody changes or deletes is put back.
func (r Role) apply(ctx context.Context, cluster Applier, addOns []objects.AddOn, granted chan struct{}) error {
	first := granted
	if len(addOns) == 0 && first != nil {
		close(first)
		first = nil
	}
	once := func() (changed bool, err error) {
		err = r.again(ctx, itemRole, func() error {
			changed, err = r.applyOnce(ctx, cluster, addOns, func(addOn string) {
				if addOn == addOns[0].Name && first != nil { // the cluster's own rights are in the first
					close(first)
					first = nil
				}
			})
			return err
		})
		return changed, err
	}
	if _, err := once(); err != nil {
		return err
	}
	drifted := make(chan string, 1)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return cluster.Drift(ctx, addOns, func(object string) {
			select {
			case drifted <- object:
			default: // an apply is due anyway
			}
		})
	})
	group.Go(func() error { return r.reapply(ctx, drifted, once) })
	return group.Wait()
}

// reapply applies when something has drifted, and now and then.
func (r Role) reapply(ctx context.Context, drifted <-chan string, once func() (changed bool, err error)) error {
	rest := firstRest
	for {
		object, err := next(ctx, drifted, lookAgain)
		if err != nil {
			return err
		}
		if object != "" {
			r.Log.Info("an object of an add-on has changed, applying again", "object", object, "in", rest)
			if _, err := next(ctx, nil, rest); err != nil {
				return err
			}
		}
		changed, err := once()
		if err != nil {
			return err
		}
		// What we have changed comes back as drift, once; only an apply that has nothing to do ends a quarrel.
		if rest = min(2*rest, longestRest); !changed {
			rest = firstRest
		}
	}
}

// next waits for a value; empty when limit has passed.
func next(ctx context.Context, c <-chan string, limit time.Duration) (string, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case s := <-c:
		return s, nil
	case <-timer.C:
		return "", nil
	}
}

// applyOnce shows what is refused; it is tried again: what it lacks may come.
func (r Role) applyOnce(ctx context.Context, cluster Applier, addOns []objects.AddOn, done func(addOn string)) (changed bool, err error) {
	err = cluster.Apply(ctx, addOns, Teller{
		Waiting: func(addOn, reason string) {
			ref := itemAddOn(addOn)
			if !slices.ContainsFunc(addOns, func(a objects.AddOn) bool { return a.Name == addOn }) {
				ref = itemRole // the inventory, or what goes away: no item of its own that could become ready
			}
			r.Board.Set(reconcile.Status{Ref: ref, Phase: reconcile.Starting, For: wait.For{What: reason, Who: "kube-apiserver"}})
		},
		Changed: func(object string) {
			changed = true
			r.Board.CountStep()
			r.Log.Info("object changed", "object", object)
		},
		Done: func(addOn string) {
			r.Board.Set(reconcile.Status{Ref: itemAddOn(addOn), Phase: reconcile.Ready})
			done(addOn)
		},
	})
	if err == nil {
		r.Board.Set(reconcile.Status{Ref: itemRole, Phase: reconcile.Ready})
	}
	return changed, err
}

// again does what may be refused until it is not, later each time, and shows the error at an item meanwhile.
func (r Role) again(ctx context.Context, ref string, do func() error) error {
	for delay := time.Second; ; delay = min(2*delay, time.Minute) {
		err := do()
		if err == nil || ctx.Err() != nil {
			return err
		}
		r.Log.Warn("refused, trying again", "item", ref, "error", err, "in", delay)
		r.Board.Set(reconcile.Status{Ref: ref, Phase: reconcile.Failing, Error: err.Error()})
		if _, err := next(ctx, nil, delay); err != nil {
			return err
		}
	}
}

const (
	soonest  = 100 * time.Millisecond
	slowest  = 30 * time.Second
	goesWell = time.Minute // what has lasted so long and then breaks is tried again soon
)

// persist runs what should last as long as ctx, again and again when it ends earlier, and shows the error at an item meanwhile.
func (r Role) persist(ctx context.Context, ref string, do func(ctx context.Context) error) error {
	for delay := soonest; ; delay = min(2*delay, slowest) {
		begun := time.Now()
		err := do(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			err = errors.New("it has ended by itself")
		}
		if time.Since(begun) > goesWell {
			delay = soonest
		}
		r.Log.Warn("trying again", "item", ref, "error", err, "in", delay)
		r.Board.Set(reconcile.Status{Ref: ref, Phase: reconcile.Failing, Error: err.Error()})
		if _, err := next(ctx, nil, delay); err != nil {
			return err
		}
	}
}
