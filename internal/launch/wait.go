// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// WaitOptions say what to wait for.
type WaitOptions struct {
	Name    string
	For     string // "cluster" or "node/NAME"
	Timeout time.Duration
	Report  func(Event) // called from several goroutines
}

// subject is what is waited for, for people.
func (o WaitOptions) subject() string {
	if o.For == "cluster" {
		return "cluster " + o.Name
	}
	return o.For
}

// Unready is an item that is not ready and the machine that it is on.
type Unready struct {
	Machine string `json:"machine"`
	reconcile.Status
}

// Wait returns when the cluster or one node of it is ready. On its time limit it fails with kind TimedOut and tells what was
// not ready. It changes nothing.
func (l *Launcher) Wait(ctx context.Context, o WaitOptions) ([]Unready, error) {
	machines, list, err := l.machinesOf(ctx, o.Name)
	if err != nil {
		return nil, err
	}
	node, isNode := strings.CutPrefix(o.For, "node/")
	switch {
	case isNode:
		if _, err := pick(o.Name, list, node); err != nil {
			return nil, err
		}
	case len(list) == 0:
		_, err := pick(o.Name, list, "")
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	w := &watcher{o: o, begun: time.Now(), last: map[string]map[string]reconcile.Status{}}
	done := w.all
	if isNode {
		done = func(ctx context.Context, machines provider, list []machine.Status) error {
			return w.item(ctx, machines, list, "control/"+o.For)
		}
	}
	err = done(limited, machines, list)
	if err == nil || ctx.Err() != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	if errors.Is(limited.Err(), context.DeadlineExceeded) {
		err = &Error{TimedOut, fmt.Errorf("%s is not ready after %s: see slipway status --name %s", o.subject(), o.Timeout, o.Name)}
	}
	return w.unready(list), err
}

// watcher follows the agents of one cluster.
type watcher struct {
	o     WaitOptions
	begun time.Time

	mu   sync.Mutex // guards the field below
	last map[string]map[string]reconcile.Status
}

// all waits until every machine has converged.
func (w *watcher) all(ctx context.Context, machines provider, list []machine.Status) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, m := range list {
		group.Go(func() error {
			return w.watch(ctx, machines, m, func(_ reconcile.Status, converged bool) bool { return converged })
		})
	}
	return group.Wait()
}

// item waits until some machine says that the item is ready.
func (w *watcher) item(ctx context.Context, machines provider, list []machine.Status, ref string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	found := make(chan struct{}, len(list))
	var group errgroup.Group
	for _, m := range list {
		group.Go(func() error {
			err := w.watch(ctx, machines, m, func(s reconcile.Status, _ bool) bool { return s.Ref == ref && s.Phase == reconcile.Ready })
			if err == nil {
				found <- struct{}{}
				cancel() // the others need not look any longer
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

func (w *watcher) watch(ctx context.Context, machines provider, m machine.Status, done func(s reconcile.Status, converged bool) bool) error {
	if !m.Running && w.o.Report != nil {
		text := m.Unreachable
		if text == "" {
			text = "it does not run; slipway up --name " + w.o.Name + " starts it"
		}
		w.o.Report(Event{Stage: StageMachine, Machine: m.Name, Phase: "down", Elapsed: time.Since(w.begun), Text: text})
	}
	agent, err := agentAt(machines.At(m.Name))
	if err != nil {
		return err
	}
	defer agent.Close()
	return agent.Watch(ctx, func(s reconcile.Status, converged bool, _ int) bool {
		w.note(m.Name, s)
		return done(s, converged)
	})
}

func (w *watcher) note(machine string, s reconcile.Status) {
	w.mu.Lock()
	if w.last[machine] == nil {
		w.last[machine] = map[string]reconcile.Status{}
	}
	w.last[machine][s.Ref] = s
	w.mu.Unlock()
	if w.o.Report != nil {
		e := convergeEvent(machine, s)
		e.Elapsed = time.Since(w.begun)
		w.o.Report(e)
	}
}

func (w *watcher) unready(list []machine.Status) []Unready {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []Unready
	for _, m := range list {
		if len(w.last[m.Name]) == 0 {
			why := "the agent does not answer"
			if !m.Running {
				why = "the machine does not run"
			}
			out = append(out, Unready{m.Name, reconcile.Status{Ref: "machine/" + m.Name, Phase: reconcile.Waiting, For: wait.For{Since: w.begun, What: "its agent"}, Error: why}})
		}
		for _, s := range unready(w.last[m.Name]) {
			out = append(out, Unready{m.Name, s})
		}
	}
	return out
}
