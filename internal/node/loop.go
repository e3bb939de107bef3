// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// loop runs one convergence and one control role per plan; a new plan ends both and starts them anew.
func (a *Agent) loop(ctx context.Context) error {
	stop := func() {}
	defer func() {
		stop()
		close(a.over)
	}()
	for {
		var taken chan struct{}
		select {
		case <-ctx.Done():
			return nil
		case halted := <-a.stop:
			stop()
			stop = func() {}
			close(halted)
			continue
		case taken = <-a.apply:
		}
		if a.Wiping() { // kept before the wipe was marked: nothing begins any more
			close(taken)
			continue
		}
		stop()
		work, cancel := context.WithCancel(ctx)
		group, work := errgroup.WithContext(work)
		stop = func() {
			cancel()
			_ = group.Wait() // its errors are in the log and on the board
		}
		now := a.current()
		a.announce(now)
		close(taken)
		group.Go(func() error { return a.converge(work, now) })
		group.Go(func() error { return a.keepTrace(work) })
		if a.cfg.Control != nil && len(now.Control) > 0 {
			group.Go(func() error { return a.control(work, now.Control) })
		}
	}
}

// announce puts every item on the board before any is worked on, so that nobody takes a half-filled board for a finished one.
func (a *Agent) announce(now kept) {
	a.mu.Lock()
	a.idle, a.ended = false, false
	a.wanted++ // nothing is converged before the first look is over, not only begun
	a.mu.Unlock()
	a.board.Reset()
	a.board.Announce(now.Want.Plan)
	if a.enrolment != nil {
		a.enrolment.Announce()
	}
	if a.cfg.Control != nil && len(now.Control) > 0 {
		a.board.Set(reconcile.Status{Ref: ControlRole, Phase: reconcile.Waiting})
	}
}

// converge brings the machine to the plan and looks again from time to time: a certificate whose renewal is due and a file
// that somebody has changed are differences like any other.
func (a *Agent) converge(ctx context.Context, now kept) error {
	loop := reconcile.Loop{Host: a.cfg.Host, Board: a.board, Log: a.cfg.Log, Rollout: a.cfg.Rollout, AfterStep: a.cfg.AfterStep}
	before := now.Before.Plan
	if a.enrolment != nil {
		a.enrolment.WaitForAddress(ctx)
	}
	for {
		asked := a.beginLook()
		if loop.Converge(ctx, now.Want.Plan, before) != nil {
			return nil //nolint:nilerr // ctx has ended; everything else is tried again inside
		}
		_, steps := a.board.All()
		a.cfg.Log.Info("converged", "node", now.Want.Node, "steps", steps)
		a.forget(now)
		before = plan.Plan{}
		a.endLook(asked)

		timer := time.NewTimer(lookAgain - lookAgain/10 + rand.N(lookAgain/5)) // machines must not all look at once
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-a.look:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// lookAgain is far below a third of the shortest certificate life.
const lookAgain = time.Hour

func (a *Agent) control(ctx context.Context, doc []byte) error {
	err := a.cfg.Control(ctx, doc, a.board)
	if err != nil && ctx.Err() == nil {
		a.cfg.Log.Error("control role stopped", "error", err)
		a.board.Set(reconcile.Status{Ref: ControlRole, Phase: reconcile.Failing, Error: err.Error()})
		a.mu.Lock()
		a.ended = true
		a.mu.Unlock()
	}
	return nil
}
