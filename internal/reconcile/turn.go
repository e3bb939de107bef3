// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"errors"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/sleep"
)

// Turn is what the machines of a cluster agree by: an entry that names a turn is exchanged, while it runs, by one of them at a time.
type Turn interface {
	// Take blocks until it is this machine's turn to exchange the item, and calls waiting each time the reason for waiting
	// changes. It is called from the goroutine of the item, for several items at once. It returns an error only when ctx ends. pass is
	// called once, when the item is ready again or is given up; it does not block.
	Take(ctx context.Context, turn, item string, waiting func(reason, provider string)) (pass func(), err error)
	// Hold keeps the turn if this machine has it for this item, perhaps since before its agent began; it asks for none and does not
	// block. It is called for all items before anything is done; pass as for Take.
	Hold(turn, item string) (pass func())
}

// errNotItsTurn: the entry differs, runs, and may be exchanged only in this machine's turn.
var errNotItsTurn = errors.New("it is not this machine's turn")

// turn is what one entry knows of its turn during a run.
type turn struct {
	mine bool
	pass []func()
}

// may tells whether a step can be done now. To start what does not run takes nothing away from anybody, nor does it to exchange what
// has been of no use for long: a broken cluster is not kept from its repair.
func (t *turn) may(l *Loop, e plan.Entry, step plan.Step, s plan.State) bool {
	return l.Turn == nil || e.Turn == "" || step.Verb != plan.Replace || s.Down || t.mine
}

// end passes the turn on, if it was taken.
func (t *turn) end() {
	for _, pass := range t.pass {
		pass()
	}
	*t = turn{}
}

// hold keeps the turn that an earlier agent has taken for the entry: what it broke would otherwise be broken on the next machine, too.
func (t *turn) hold(l *Loop, e plan.Entry) {
	if l.Turn != nil && e.Turn != "" {
		t.pass = append(t.pass, l.Turn.Hold(e.Turn, e.Ref.String()))
	}
}

// lookWhileWaiting is how often an item that waits for its turn is looked at: what has died meanwhile waits no longer.
const lookWhileWaiting = time.Second

// takeTurn waits for the turn, or until the entry needs none any more.
func (r *run) takeTurn(ctx context.Context, e plan.Entry, t *turn) error {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		defer cancel()
		r.untilNeedless(waiting, e)
	}()
	defer func() { cancel(); <-watched }()
	ref := e.Ref.String()
	pass, err := r.Turn.Take(waiting, e.Turn, ref, func(reason, provider string) {
		r.Board.Set(Status{Ref: ref, Phase: Waiting, For: "its turn: " + reason, Provider: provider})
	})
	switch {
	case err == nil:
		t.mine, t.pass = true, append(t.pass, pass)
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case waiting.Err() != nil:
		return nil // it is looked at again, and then needs none
	}
	return err
}

// untilNeedless returns when the entry may be done without a turn, or when ctx ends.
func (r *run) untilNeedless(ctx context.Context, e plan.Entry) {
	var none turn
	for sleep.For(ctx, lookWhileWaiting) == nil {
		state, err := r.observe(ctx, e)
		if err != nil {
			continue // nobody knows: it waits on
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
