// SPDX-License-Identifier: Apache-2.0

package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/inventory"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/provider"
	"github.com/slipway-project/slipway/internal/reconcile"
	"github.com/slipway-project/slipway/internal/report"
)

// WaitOptions say what to wait for.
type WaitOptions struct {
	Cluster string
	For     string // "cluster" or "node/NAME"
	Timeout time.Duration
	Report  report.Func
}

// Subject is what is waited for, for people.
func (o WaitOptions) Subject() string {
	if o.For == "cluster" {
		return "cluster " + o.Cluster
	}
	return o.For
}

// UnreadyItem is an item that is not ready and the machine that it is on.
type UnreadyItem struct {
	Machine string `json:"machine"`
	reconcile.Status
}

// Wait returns when the cluster or one of its nodes is ready. When the timeout expires it fails with kind TimedOut and returns
// what is not ready. It changes nothing.
func Wait(ctx context.Context, inv inventory.Inventory, o WaitOptions) ([]UnreadyItem, error) {
	machines, list, err := inv.List(ctx, o.Cluster)
	if err != nil {
		return nil, err
	}
	node, isNode := strings.CutPrefix(o.For, "node/")
	if !isNode {
		node = ""
	}
	if _, err := provider.Pick(o.Cluster, list, node); err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	w := &waiter{o: o, machines: machines, list: list, report: o.Report.Since(time.Now()), started: time.Now(), last: map[string]map[string]reconcile.Status{}}
	if isNode {
		err = w.item(limited, "control/"+o.For)
	} else {
		err = w.all(limited)
	}
	if err == nil || ctx.Err() != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	if errors.Is(limited.Err(), context.DeadlineExceeded) {
		err = &report.Error{Kind: report.TimedOut, Err: fmt.Errorf("%s is not ready after %s: see slipway status --name %s", o.Subject(), o.Timeout, o.Cluster)}
	}
	return w.unready(), err
}

// waiter follows the agents of one cluster.
type waiter struct {
	o        WaitOptions
	machines provider.Machines
	list     []machine.Status
	report   report.Func
	started  time.Time

	mu   sync.Mutex // guards the field below
	last map[string]map[string]reconcile.Status
}

// all waits until every machine has converged.
func (w *waiter) all(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, m := range w.list {
		group.Go(func() error {
			return w.watch(ctx, m, func(_ reconcile.Status, converged bool) bool { return converged })
		})
	}
	return group.Wait()
}

// item waits until any machine reports the item as ready.
func (w *waiter) item(ctx context.Context, ref string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	found := make(chan struct{}, len(w.list))
	var group errgroup.Group
	for _, m := range w.list {
		group.Go(func() error {
			err := w.watch(ctx, m, func(s reconcile.Status, _ bool) bool { return s.Ref == ref && s.Phase == reconcile.Ready })
			if err == nil {
				found <- struct{}{}
				cancel() // one machine is enough
			}
			return err
		})
	}
	err := group.Wait()
	select {
	case <-found:
		return nil
	default:
		return err
	}
}

func (w *waiter) watch(ctx context.Context, m machine.Status, done func(s reconcile.Status, converged bool) bool) error {
	if !m.Running {
		text := m.Unreachable
		if text == "" {
			text = "not running: start it with slipway up --name " + w.o.Cluster
		}
		w.report(report.Event{Stage: report.StageMachine, Machine: m.Name, Phase: "down", Text: text})
	}
	agent, err := agentclient.Dial(provider.Agent(w.machines.Host(m.Name)))
	if err != nil {
		return err
	}
	defer agent.Close()
	return agent.Watch(ctx, func(s reconcile.Status, converged bool, _ int) bool {
		w.mu.Lock()
		if w.last[m.Name] == nil {
			w.last[m.Name] = map[string]reconcile.Status{}
		}
		w.last[m.Name][s.Ref] = s
		w.mu.Unlock()
		w.report(report.Item(m.Name, s))
		return done(s, converged)
	})
}

func (w *waiter) unready() []UnreadyItem {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []UnreadyItem
	for _, m := range w.list {
		if len(w.last[m.Name]) == 0 {
			why := "the agent does not answer"
			if !m.Running {
				why = "the machine is not running"
			}
			out = append(out, UnreadyItem{m.Name, reconcile.Status{Ref: "machine/" + m.Name, Phase: reconcile.Waiting, For: wait.For{Since: w.started, What: "its agent"}, Error: why}})
		}
		for _, s := range agentclient.Unready(w.last[m.Name]) {
			out = append(out, UnreadyItem{m.Name, s})
		}
	}
	return out
}
