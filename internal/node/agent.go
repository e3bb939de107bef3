// SPDX-License-Identifier: Apache-2.0

// Package node is the agent on a machine: it takes a finished plan, keeps it, runs the loop and reports. It never plans,
// and it needs no network and no other machine to bring its node up again from the plan on its disk.
//
// Read [Agent] first, then server.go for what the operator can ask.
package node

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// Agent is one machine's agent.
type Agent struct {
	cfg   Config
	board *reconcile.Board
	apply chan chan struct{} // a plan has been kept; what is sent is closed when the loop has taken it up
	look  chan struct{}      // the plan was handed over again: look at once
	stop  chan chan struct{} // end the loop; what is sent is closed when it has ended
	over  chan struct{}      // closed when the agent itself has ended

	enrolment Enrolment // nil where plans are handed over by other means; set by Run

	mu     sync.Mutex // guards the fields below
	kept   kept
	lost   error // why kept is empty although there was something
	wanted int   // looks at the machine that were asked for
	looked int   // of those, how many are answered
	idle   bool  // everything was ready at the last look, and none is under way
	ended  bool  // the control role ended by itself
}

// Items of the board that no plan has.
const (
	ControlRole = "control/role" // the control role itself
	KeptPlan    = "node/plan"    // there while the kept plan cannot be read
)

// New returns an agent that remembers what it was told before. A memory that cannot be read is never a fresh start: the agent
// says so on the board and leaves the machine as it is, until it is given a plan.
func New(cfg Config) (*Agent, error) {
	if cfg.Board == nil {
		cfg.Board = reconcile.NewBoard()
	}
	if cfg.Pass == nil {
		cfg.Pass = func(string) {}
	}
	a := &Agent{cfg: cfg, board: cfg.Board, apply: make(chan chan struct{}, 1), look: make(chan struct{}, 1), stop: make(chan chan struct{}), over: make(chan struct{})}
	switch found, err := a.recall(); {
	case err != nil:
		a.lost, a.kept = err, kept{}
		cfg.Log.Error("no plan", "error", err)
		a.board.Set(reconcile.Status{Ref: KeptPlan, Phase: reconcile.Failing, Error: err.Error(), For: wait.For{Who: "slipway up"}})
	case found && !a.kept.Wiping && a.kept.Want.Version != 0:
		a.apply <- make(chan struct{})
	}
	return a, nil
}

// Run serves the operator and converges until ctx ends. It is called once. Without an enrolment the machine can neither join nor
// be reset: plans are handed over by other means.
func (a *Agent) Run(ctx context.Context, e Enrolment) error {
	a.enrolment = e
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.serve(ctx) })
	group.Go(func() error { return a.loop(ctx) })
	return group.Wait()
}

// Keep stores a new plan durably and starts to converge to it. It reports whether plan or control document differ from
// what was kept; the same plan again breaks nothing off, and only has the machine looked at once more.
func (a *Agent) Keep(ctx context.Context, want plan.Plan, control []byte) (changed bool, err error) {
	changed, err = a.remember(want, control)
	if err != nil {
		return false, err
	}
	if !changed && a.lookNow() {
		return false, nil
	}
	taken := make(chan struct{})
	select {
	case a.apply <- taken:
	case <-ctx.Done():
		return changed, ctx.Err()
	}
	select {
	case <-taken:
	case <-ctx.Done():
		return changed, ctx.Err() // kept all the same; the loop takes it up
	}
	return changed, nil
}

// Stop takes the node's processes down in order, dependents first; before its pods the kubelet, which would start them again.
func (a *Agent) Stop(ctx context.Context) error {
	var order []string
	now, pods := a.current(), false
	for i := len(now.Want.Entries) - 1; i >= 0; i-- {
		switch it := now.Want.Entries[i].Item.(type) {
		case plan.Unit:
			if !it.Oneshot {
				order = append(order, it.Name)
			}
		case plan.StaticPod:
			if it.Component {
				order, pods = append(order, it.Name), true
			}
		default:
		}
	}
	if pods {
		order = append([]string{"kubelet"}, order...)
	}
	return a.cfg.Host.StopAll(ctx, order)
}
