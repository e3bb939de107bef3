// SPDX-License-Identifier: Apache-2.0

// Package reconcile contains the control loop of a node: observe, compare with the plan, apply one step,
// wait until the item is ready. Each entry runs as soon as its needs are ready; there are no phases. The
// loop does not know what an item is, and it retries without limit: a failing item stays in the failing
// phase until an attempt succeeds.
//
// Read [Loop.Converge] and [Host] first, then [Board].
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/sleep"
	"github.com/slipway-project/slipway/internal/trace"
)

// Loop brings one host to the state that a plan describes.
type Loop struct {
	Host  Host
	Board *Board
	Log   *slog.Logger
	// Rollout, if set, is acquired before a running entry that is marked as rolling is replaced.
	Rollout RolloutLease
	// AfterStep, if set, is called after each step with the number of steps since the run began. Tests use
	// it to crash between steps.
	AfterStep func(n int, s plan.Step)
}

// Converge removes the entries of before that want no longer has, and brings every entry of want to ready.
// All removals are tried once before anything new is made, so that old and new items do not conflict;
// removals that fail are retried concurrently. Converge returns nil when every entry is ready or removed,
// and an error only when ctx ends. It may be called again after a crash at any point.
func (l *Loop) Converge(ctx context.Context, want, before plan.Plan) error {
	l.Board.Announce(want)
	tried := make(chan struct{})
	run := &run{Loop: l, ready: map[plan.Ref]chan struct{}{}}
	for _, e := range want.Entries {
		run.ready[e.Ref] = make(chan struct{})
	}
	holds := make([]hold, len(want.Entries))
	for i, e := range want.Entries { // before anything else: the manager of the lease must know what the lease is kept for
		holds[i].keep(l, e)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return l.remove(ctx, want, before, sync.OnceFunc(func() { close(tried) })) })
	select {
	case <-tried:
	case <-ctx.Done():
	}
	for i, e := range want.Entries {
		group.Go(func() error {
			defer holds[i].end() // not before it is ready, however many attempts that takes
			return run.entry(ctx, e, &holds[i])
		})
	}
	return group.Wait()
}

// run is one call of Converge.
type run struct {
	*Loop
	ready map[plan.Ref]chan struct{} // closed when the entry is ready
}

// entry brings one entry to ready: it waits for the needs and then retries attempt without limit. It
// returns an error only if ctx ends.
func (r *run) entry(ctx context.Context, e plan.Entry, h *hold) error {
	ref := e.Ref.String()
	for _, need := range e.Needs {
		r.Board.setWaiting(ref, need.String())
		select {
		case <-r.ready[need]:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	now := time.Now()
	r.Board.span(ref, func(s *trace.Span) { s.Released, s.Done = now, now })

	err := r.retry(ctx, ref, func() error { return r.attempt(ctx, e, h) })
	if err != nil {
		return err
	}
	r.Board.Set(Status{Ref: ref, Phase: Ready})
	close(r.ready[e.Ref])
	return nil
}

// attempt observes the entry, applies at most one step, and waits until the entry is ready.
func (r *run) attempt(ctx context.Context, e plan.Entry, h *hold) error {
	state, err := r.observeAndDo(ctx, e, h)
	for errors.Is(err, errNeedsLease) {
		if err := r.acquire(ctx, e, h); err != nil {
			return err
		}
		state, err = r.observeAndDo(ctx, e, h)
	}
	if err != nil || state.Ready {
		return err
	}
	ref := e.Ref.String()
	provider := ""
	if g, ok := e.Item.(plan.Precondition); ok {
		provider = g.Provider
	}
	r.Board.Set(Status{Ref: ref, Phase: Starting, For: wait.For{Who: provider}})
	return r.Host.Await(ctx, e, func(reason string) {
		r.Board.Set(Status{Ref: ref, Phase: Starting, For: wait.For{What: reason, Who: provider}})
	})
}

// observeAndDo observes the entry and applies the step that it needs, if any. The returned state is zero
// if a step was done, so that the caller waits for readiness.
func (r *run) observeAndDo(ctx context.Context, e plan.Entry, h *hold) (plan.State, error) {
	ctx, cancel := context.WithTimeout(ctx, deadline(e))
	defer cancel()
	state, err := r.Host.Observe(ctx, e)
	if err != nil {
		return plan.State{}, fmt.Errorf("observe: %w", err)
	}
	step, ok := plan.Next(e, state)
	if !ok {
		if state.Existence == plan.Unknown && e.Item.Kind() != plan.KindPrecondition {
			return plan.State{}, fmt.Errorf("observe: unknown: %s", state.Detail)
		}
		return state, nil
	}
	if !h.may(r.Loop, e, step, state) {
		return plan.State{}, errNeedsLease
	}
	if err := r.do(ctx, step, e); err != nil {
		return plan.State{}, err
	}
	r.Board.span(e.Ref.String(), func(s *trace.Span) { s.Done, s.Step, s.Why = time.Now(), string(step.Verb), step.Why })
	return plan.State{}, nil // Await checks readiness
}

// do applies one step, counts it and logs it.
func (l *Loop) do(ctx context.Context, step plan.Step, e plan.Entry) error {
	l.Board.Set(Status{Ref: e.Ref.String(), Phase: Doing, For: wait.For{What: string(step.Verb)}, Step: &step})
	if err := l.Host.Do(ctx, step, e); err != nil {
		return fmt.Errorf("%s: %w", step.Verb, err)
	}
	n := l.Board.CountStep()
	l.Log.Info("step done", "n", n, "verb", step.Verb, "item", e.Ref.String(), "why", step.Why)
	if l.AfterStep != nil {
		l.AfterStep(n, step)
	}
	return nil
}

// retry calls f until it succeeds or ctx ends, with exponential backoff and jitter.
func (l *Loop) retry(ctx context.Context, ref string, f func() error) error {
	for n := 0; ; n++ {
		err := f()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), fmt.Errorf("%s: %w", ref, err))
		}
		delay := backoff(n)
		l.reportFailure(ref, err, n, delay)
		if err := sleep.For(ctx, delay); err != nil {
			return err
		}
	}
}

func (l *Loop) reportFailure(ref string, err error, n int, delay time.Duration) {
	l.Log.Warn("step failed, retrying", "item", ref, "error", err, "attempt", n+1, "in", delay)
	l.Board.span(ref, func(s *trace.Span) { s.Attempts++ })
	l.Board.Set(Status{Ref: ref, Phase: Failing, Error: err.Error()})
}

// backoff grows from 50 ms to 10 s, with 10% jitter in each direction so that machines do not retry in
// lockstep.
func backoff(n int) time.Duration {
	d := min(50*time.Millisecond<<min(n, 10), 10*time.Second)
	return d - d/10 + rand.N(d/5)
}

// deadline is the time limit of one attempt to apply an entry.
func deadline(e plan.Entry) time.Duration {
	if e.Deadline > 0 {
		return e.Deadline
	}
	return time.Minute
}

// Host is the machine as the loop sees it. Methods are called concurrently for different entries, but
// never concurrently for the same entry. All methods are idempotent: after a crash the loop calls them
// again.
type Host interface {
	// Observe returns the current state of the entry without changing anything. An error means that the
	// state is unknown.
	Observe(ctx context.Context, e plan.Entry) (plan.State, error)

	// Do applies one step and returns when it is done: a file is durable, a process has been started (but
	// may not be ready), a oneshot has run to completion. For Remove, e is the entry of the earlier plan.
	Do(ctx context.Context, s plan.Step, e plan.Entry) error

	// Await blocks until the entry is ready or ctx ends, and calls waiting each time the reason for
	// waiting changes. It returns an error only if ctx has ended or waiting is pointless because the
	// started process is gone.
	Await(ctx context.Context, e plan.Entry, waiting func(reason string)) error
}

const removalReason = "the plan no longer has it"

// remove removes the entries that only the earlier plan had, dependents first. A removal that fails is
// retried in the next round and blocks only the removals of its needs. remove calls tried after the first
// failure, or when all removals are done; nothing has to wait for it longer.
func (l *Loop) remove(ctx context.Context, want, before plan.Plan, tried func()) error {
	left := plan.Removed(want, before)
	for _, e := range left {
		l.Board.setRemoving(e.Ref.String(), "")
	}
	for n := 0; len(left) > 0; n++ {
		delay := backoff(n)
		var stay []plan.Entry
		for _, e := range left {
			ref := e.Ref.String()
			if i := slices.IndexFunc(stay, func(s plan.Entry) bool { return slices.Contains(s.Needs, e.Ref) }); i >= 0 {
				l.Board.setRemoving(ref, "removal of "+stay[i].Ref.String())
				stay = append(stay, e)
				continue
			}
			err := l.removeOnce(ctx, e, want, before)
			if ctx.Err() != nil {
				return errors.Join(ctx.Err(), err)
			}
			if err != nil {
				l.reportFailure(ref, err, n, delay)
				stay = append(stay, e)
				tried()
				continue
			}
			l.Board.Drop(ref)
		}
		if left = stay; len(left) > 0 {
			if err := sleep.For(ctx, delay); err != nil {
				return err
			}
		}
	}
	tried()
	return nil
}

// removeOnce makes one attempt to remove an entry. An unknown state is an error.
func (l *Loop) removeOnce(ctx context.Context, e plan.Entry, want, before plan.Plan) error {
	ctx, cancel := context.WithTimeout(ctx, deadline(e))
	defer cancel()
	// The host can only judge a unit after it has observed the unit's inputs, and those of a removed unit
	// have not been observed in this run. Their state does not matter.
	for _, in := range plan.Inputs(e.Item) {
		for _, p := range []plan.Plan{want, before} {
			if input, ok := p.Find(in.String()); ok {
				_, _ = l.Host.Observe(ctx, input)
				break
			}
		}
	}
	switch state, err := l.Host.Observe(ctx, e); {
	case err != nil:
		return fmt.Errorf("observe: %w", err)
	case state.Existence == plan.Unknown:
		return fmt.Errorf("observe: unknown: %s", state.Detail)
	case state.Existence == plan.Absent:
		return nil
	}
	if err := l.do(ctx, plan.Step{Verb: plan.Remove, Ref: e.Ref, Why: removalReason}, e); err != nil {
		return err
	}
	l.Board.span(e.Ref.String(), func(s *trace.Span) {
		s.Done, s.Step, s.Why = time.Now(), string(plan.Remove), removalReason
	})
	return nil
}
