// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/core/objects"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/reconcile"
)

const (
	// resync is the time between applies without drift. It covers changes from before the watch started.
	resync = 10 * time.Minute
	// Pauses between drift and the next apply. A short one, because objects are often deleted together. It grows if another client
	// keeps reverting what the role applies.
	minPause = 500 * time.Millisecond
	maxPause = time.Minute
)

// apply applies the add-ons and keeps them applied until ctx ends: it restores what someone changes or deletes. It closes granted
// when the first add-on, which contains the role's own rights, is done.
func (r Role) apply(ctx context.Context, cluster Applier, addOns []objects.AddOn, granted chan struct{}) error {
	report := &applyReport{role: r, addOns: addOns, granted: granted}
	if len(addOns) == 0 {
		report.grant()
	}
	once := func() (changed bool, err error) {
		err = r.retryRefused(ctx, itemRole, func() error {
			report.changed = false
			if err := cluster.Apply(ctx, addOns, report); err != nil {
				return err
			}
			r.Board.Set(reconcile.Status{Ref: itemRole, Phase: reconcile.Ready})
			return nil
		})
		return report.changed, err
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
	group.Go(func() error {
		pause := minPause
		for {
			object, err := next(ctx, drifted, resync)
			if err != nil {
				return err
			}
			if object != "" {
				r.Log.Info("object of an add-on has changed, applying again", "object", object, "in", pause)
				if _, err := next(ctx, nil, pause); err != nil {
					return err
				}
			}
			changed, err := once()
			if err != nil {
				return err
			}
			// The role's own changes return as drift once. Only an apply without changes shows that no other client interferes.
			if pause = min(2*pause, maxPause); !changed {
				pause = minPause
			}
		}
	})
	return group.Wait()
}

// next returns a value of c, or "" when limit has passed.
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

// applyReport is the Progress of the role's applies: it updates the board.
type applyReport struct {
	role    Role
	addOns  []objects.AddOn
	granted chan struct{} // closed when the first add-on is done; nil afterwards
	changed bool          // the current Apply has changed an object
}

var _ Progress = (*applyReport)(nil)

func (a *applyReport) Waiting(addOn, reason string) {
	ref := itemAddOn(addOn)
	if !slices.ContainsFunc(a.addOns, func(x objects.AddOn) bool { return x.Name == addOn }) {
		ref = itemRole // the inventory, or an add-on that is being deleted: neither has an item that could become ready
	}
	a.role.Board.Set(reconcile.Status{Ref: ref, Phase: reconcile.Starting, For: wait.For{What: reason, Who: "kube-apiserver"}})
}

func (a *applyReport) Changed(object string) {
	a.changed = true
	a.role.Board.CountStep()
	a.role.Log.Info("object changed", "object", object)
}

func (a *applyReport) Done(addOn string) {
	a.role.Board.Set(reconcile.Status{Ref: itemAddOn(addOn), Phase: reconcile.Ready})
	if addOn == a.addOns[0].Name {
		a.grant()
	}
}

func (a *applyReport) grant() {
	if a.granted != nil {
		close(a.granted)
		a.granted = nil
	}
}

// retryRefused calls do until it succeeds, with growing pauses, because what a refused object needs may be created later. Until then
// it shows the error at an item.
func (r Role) retryRefused(ctx context.Context, ref string, do func() error) error {
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
	minRestart = 100 * time.Millisecond
	maxRestart = 30 * time.Second
	stable     = time.Minute // what has run this long is restarted after minRestart again
)

// persist runs do until ctx ends. It restarts do when it returns earlier, and shows the error at an item until do reports another
// state.
func (r Role) persist(ctx context.Context, ref string, do func(ctx context.Context) error) error {
	for delay := minRestart; ; delay = min(2*delay, maxRestart) {
		begun := time.Now()
		err := do(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			err = errors.New("ended without an error")
		}
		if time.Since(begun) > stable {
			delay = minRestart
		}
		r.Log.Warn("ended, starting again", "item", ref, "error", err, "in", delay)
		r.Board.Set(reconcile.Status{Ref: ref, Phase: reconcile.Failing, Error: err.Error()})
		if _, err := next(ctx, nil, delay); err != nil {
			return err
		}
	}
}

// seed creates the objects that the first pods need. It only saves time: the controller-manager creates them, too, so an error is
// logged and not returned.
func (r Role) seed(ctx context.Context, cluster Applier, path string) error {
	ca, err := os.ReadFile(path)
	if err == nil {
		err = cluster.Seed(ctx, string(ca))
	}
	if err != nil && ctx.Err() == nil {
		r.Log.Warn("seeds not created, the first pods wait for the controller-manager", "error", err)
	}
	return nil
}
