// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/sleep"
	"github.com/slipway-project/slipway/internal/trace"
)

const noLonger = "the plan no longer has it"

// remove takes away what the earlier plan made, dependents first. What fails is tried again in the next round, and until then
// holds up only what it needs. It calls tried as soon as nobody has to wait for it: something failed, or all is gone.
func (l *Loop) remove(ctx context.Context, want, before plan.Plan, tried func()) error {
	left := plan.Gone(want, before)
	for _, e := range left {
		l.Board.leaves(e.Ref.String(), "")
	}
	for n := 0; len(left) > 0; n++ {
		delay := backoff(n)
		var stay []plan.Entry
		for _, e := range left {
			ref := e.Ref.String()
			if i := slices.IndexFunc(stay, func(s plan.Entry) bool { return slices.Contains(s.Needs, e.Ref) }); i >= 0 {
				l.Board.leaves(ref, "removal of "+stay[i].Ref.String())
				stay = append(stay, e)
				continue
			}
			err := l.removeInTime(ctx, e, want, before)
			if ctx.Err() != nil {
				return errors.Join(ctx.Err(), err)
			}
			if err != nil {
				l.failed(ref, err, n, delay)
				stay = append(stay, e)
				tried()
				continue
			}
			l.Board.drop(ref)
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

func (l *Loop) removeInTime(ctx context.Context, e plan.Entry, want, before plan.Plan) error {
	ctx, cancel := context.WithTimeout(ctx, deadline(e))
	defer cancel()
	l.lookAtInputs(ctx, e, want, before)
	return l.removeOnce(ctx, e)
}

// removeOnce does not take unknown for present: it is asked again.
func (l *Loop) removeOnce(ctx context.Context, e plan.Entry) error {
	switch state, err := l.Host.Observe(ctx, e); {
	case err != nil:
		return fmt.Errorf("observe: %w", err)
	case state.Existence == plan.Unknown:
		return fmt.Errorf("observe: unknown: %s", state.Detail)
	case state.Existence == plan.Absent:
		return nil
	}
	if err := l.do(ctx, plan.Step{Verb: plan.Remove, Ref: e.Ref, Why: noLonger}, e); err != nil {
		return err
	}
	l.Board.span(e.Ref.String(), func(s *trace.Span) {
		s.Done, s.Step, s.Why = time.Now(), string(plan.Remove), noLonger
	})
	return nil
}

// lookAtInputs shows the host what a unit reads: it cannot tell how a unit is without having seen its inputs, and those of one
// that goes have not been looked at before. What they are like does not matter.
func (l *Loop) lookAtInputs(ctx context.Context, e plan.Entry, plans ...plan.Plan) {
	for _, in := range plan.Inputs(e.Item) {
		for _, p := range plans {
			if input, ok := p.Find(in.String()); ok {
				_, _ = l.Host.Observe(ctx, input)
				break
			}
		}
	}
}
