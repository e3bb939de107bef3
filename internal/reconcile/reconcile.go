// SPDX-License-Identifier: Apache-2.0

// Package reconcile is the only loop: observe, compare with the plan, do one step, wait until it is ready. Every entry runs
// by itself as soon as its needs are ready; there are no waves and no phases. The loop does not know what an item is, and
// never gives up: failing is a state in which it tries again.
//
// Read [Loop.Converge] and [Host] first, then [Status].
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/trace"
)

// Loop brings one host to a plan.
type Loop struct {
	Host  Host
	Board *Board
	Log   *slog.Logger
	// AfterStep, if set, is called after each step with its number since the run began. Tests use it to crash between steps.
	AfterStep func(n int, s plan.Step)
}

// Converge removes what before had and want has not, then brings every entry of want to ready. It returns nil when all are
// ready, otherwise only when ctx ends. Calling it again after a crash, at any point, continues.
func (l *Loop) Converge(ctx context.Context, want, before plan.Plan) error {
	l.Board.Announce(want)
	if err := l.remove(ctx, want, before); err != nil {
		return err
	}
	run := &run{Loop: l, ready: map[plan.Ref]chan struct{}{}}
	for _, e := range want.Entries {
		run.ready[e.Ref] = make(chan struct{})
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, e := range want.Entries {
		group.Go(func() error { return run.entry(ctx, e) })
	}
	return group.Wait()
}

// run is one pass of Converge: which entries have become ready.
type run struct {
	*Loop
	ready map[plan.Ref]chan struct{} // closed when the entry is ready
}

func (r *run) entry(ctx context.Context, e plan.Entry) error {
	ref := e.Ref.String()
	for _, need := range e.Needs {
		r.Board.waits(ref, need.String())
		select {
		case <-r.ready[need]:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	now := time.Now()
	r.Board.span(ref, func(s *trace.Span) { s.Released, s.Done = now, now })

	err := r.untilDone(ctx, ref, func() error { return r.attempt(ctx, e) })
	if err != nil {
		return err
	}
	r.Board.Set(Status{Ref: ref, Phase: Ready})
	close(r.ready[e.Ref])
	return nil
}

// attempt observes once, does at most one step, and waits until the entry is ready.
func (r *run) attempt(ctx context.Context, e plan.Entry) error {
	state, err := r.observeAndDo(ctx, e)
	if err != nil || state.Ready {
		return err
	}
	ref := e.Ref.String()
	provider := ""
	if g, ok := e.Item.(plan.Gate); ok {
		provider = g.Provider
	}
	r.Board.Set(Status{Ref: ref, Phase: Starting, Provider: provider})
	return r.Host.Await(ctx, e, func(reason string) {
		r.Board.Set(Status{Ref: ref, Phase: Starting, For: reason, Provider: provider})
	})
}

func (r *run) observeAndDo(ctx context.Context, e plan.Entry) (plan.State, error) {
	ctx, cancel := context.WithTimeout(ctx, deadline(e))
	defer cancel()
	state, err := r.Host.Observe(ctx, e)
	if err != nil {
		return plan.State{}, fmt.Errorf("observe: %w", err)
	}
	step, ok := plan.Next(e, state)
	if !ok {
		if state.Existence == plan.Unknown && e.Item.Kind() != plan.KindGate {
			return plan.State{}, fmt.Errorf("observe: unknown: %s", state.Detail)
		}
		return state, nil
	}
	if err := r.do(ctx, step, e); err != nil {
		return plan.State{}, err
	}
	r.Board.span(e.Ref.String(), func(s *trace.Span) { s.Done, s.Step, s.Why = time.Now(), string(step.Verb), step.Why })
	return plan.State{}, nil // Await asks again
}

func (l *Loop) do(ctx context.Context, step plan.Step, e plan.Entry) error {
	l.Board.Set(Status{Ref: e.Ref.String(), Phase: Doing, For: string(step.Verb), Step: &step})
	if err := l.Host.Do(ctx, step, e); err != nil {
		return fmt.Errorf("%s: %w", step.Verb, err)
	}
	n := l.Board.countStep()
	l.Log.Info("step done", "n", n, "verb", step.Verb, "item", e.Ref.String(), "why", step.Why)
	if l.AfterStep != nil {
		l.AfterStep(n, step)
	}
	return nil
}

// remove takes away what the earlier plan made, dependents first. Unknown is not present: it is asked again.
func (l *Loop) remove(ctx context.Context, want, before plan.Plan) error {
	for _, e := range plan.Gone(want, before) {
		ref := e.Ref.String()
		err := l.untilDone(ctx, ref, func() error {
			ctx, cancel := context.WithTimeout(ctx, deadline(e))
			defer cancel()
			l.lookAtInputs(ctx, e, want, before)
			return l.removeOnce(ctx, e)
		})
		if err != nil {
			return err
		}
		l.Board.drop(ref)
	}
	return nil
}

func (l *Loop) removeOnce(ctx context.Context, e plan.Entry) error {
	switch state, err := l.Host.Observe(ctx, e); {
	case err != nil:
		return fmt.Errorf("observe: %w", err)
	case state.Existence == plan.Unknown:
		return fmt.Errorf("observe: unknown: %s", state.Detail)
	case state.Existence == plan.Absent:
		return nil
	}
	if err := l.do(ctx, plan.Step{Verb: plan.Remove, Ref: e.Ref, Why: "the plan no longer has it"}, e); err != nil {
		return err
	}
	l.Board.span(e.Ref.String(), func(s *trace.Span) {
		s.Done, s.Step, s.Why = time.Now(), string(plan.Remove), "the plan no longer has it"
	})
	return nil
}

// lookAtInputs shows the host what a unit reads: it cannot tell how a unit is without having seen its inputs, and those of one
// that goes have not been looked at before. What they are like does not matter.
func (l *Loop) lookAtInputs(ctx context.Context, e plan.Entry, plans ...plan.Plan) {
	u, ok := e.Item.(plan.Unit)
	if !ok {
		return
	}
	for _, in := range u.Inputs {
		for _, p := range plans {
			if input, ok := p.Find(in.String()); ok {
				_, _ = l.Host.Observe(ctx, input)
				break
			}
		}
	}
}

// untilDone calls f until it succeeds or ctx ends, waiting longer each time, with jitter.
func (l *Loop) untilDone(ctx context.Context, ref string, f func() error) error {
	for n := 0; ; n++ {
		err := f()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), fmt.Errorf("%s: %w", ref, err))
		}
		delay := backoff(n)
		l.Log.Warn("step failed, trying again", "item", ref, "error", err, "attempt", n+1, "in", delay)
		l.Board.span(ref, func(s *trace.Span) { s.Attempts++ })
		l.Board.Set(Status{Ref: ref, Phase: Failing, Error: err.Error()})
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// backoff grows from 50 ms to 10 s, with a fifth of jitter so that machines do not march in step.
func backoff(n int) time.Duration {
	d := min(50*time.Millisecond<<min(n, 10), 10*time.Second)
	return d - d/10 + rand.N(d/5)
}

func deadline(e plan.Entry) time.Duration {
	if e.Deadline > 0 {
		return e.Deadline
	}
	return time.Minute
}
