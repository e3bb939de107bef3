// SPDX-License-Identifier: Apache-2.0

package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	"github.com/slipway-project/slipway/internal/trace"
)

// ClusterStatus is the current state of a cluster. It is ready when every machine is running, every agent answers, and every
// item of every plan is ready. A cluster with an unknown state is not ready.
type ClusterStatus struct {
	Cluster  string          `json:"cluster"`
	Release  string          `json:"release,omitempty"` // empty while no agent reports it
	Ready    bool            `json:"ready"`
	Verdict  string          `json:"verdict"`
	Machines []MachineStatus `json:"machines"`
}

// MachineStatus is one machine and what its agent reports.
type MachineStatus struct {
	machine.Status
	AgentVersion string                  `json:"agentVersion,omitempty"`
	AgentError   string                  `json:"agentError,omitempty"` // why the agent reports nothing
	Node         *agentclient.NodeStatus `json:"node,omitempty"`       // nil while the agent reports nothing
}

// Status returns the state of a cluster. It works while machines are down and agents do not answer, and changes nothing.
func Status(ctx context.Context, inv inventory.Inventory, cluster string) (ClusterStatus, error) {
	machines, list, err := inv.List(ctx, cluster)
	if err != nil {
		return ClusterStatus{}, err
	}
	s := ClusterStatus{Cluster: cluster, Machines: make([]MachineStatus, len(list))}
	var asking sync.WaitGroup
	for i, m := range list {
		s.Machines[i] = MachineStatus{Status: m}
		if m.Running {
			asking.Go(func() { s.Machines[i].ask(ctx, provider.Agent(machines.Host(m.Name))) })
		}
	}
	asking.Wait()
	if ctx.Err() != nil {
		return ClusterStatus{}, ctx.Err()
	}
	s.judge()
	return s, nil
}

// ask fills in what the agent reports, or why it does not.
func (m *MachineStatus) ask(ctx context.Context, dial agentclient.Dialer) {
	limited, cancel := context.WithTimeout(ctx, agentclient.Timeout)
	defer cancel()
	err := func() error {
		agent, err := agentclient.Dial(dial)
		if err != nil {
			return err
		}
		defer agent.Close()
		info, err := agent.Addressed(limited)
		if err != nil {
			return err
		}
		node, err := agent.Status(limited)
		if err == nil {
			m.AgentVersion, m.Node = info.Version, &node
		}
		return err
	}()
	if err == nil {
		return
	}
	m.AgentError = err.Error()
	if limited.Err() == nil {
		return
	}
	conn, err := dial(ctx) // distinguishes an agent that is down from one that hangs
	if err != nil {
		m.AgentError = err.Error()
		return
	}
	conn.Close()
	m.AgentError = fmt.Sprintf("it accepts connections but has not responded for %s", agentclient.Timeout)
}

// judge sets the verdict, one line that states the worst problem.
func (s *ClusterStatus) judge() {
	total, unready := 0, 0
	for _, m := range s.Machines {
		if m.Node != nil {
			if m.Node.Release != "" {
				s.Release = m.Node.Release
			}
			total += len(m.Node.Items)
			unready += len(m.Node.Unready())
		}
	}
	s.Verdict = s.problem(total, unready)
	s.Ready = s.Verdict == ""
	if s.Ready {
		s.Verdict = fmt.Sprintf("cluster %s is ready: Kubernetes %s, %s", s.Cluster, s.Release, report.Count(len(s.Machines), "machine"))
	}
}

func (s *ClusterStatus) problem(total, unready int) string {
	if len(s.Machines) == 0 {
		return fmt.Sprintf("cluster %s has no machines yet: run slipway up --name %s", s.Cluster, s.Cluster)
	}
	for _, m := range s.Machines {
		if m.Unreachable != "" {
			return fmt.Sprintf("cluster %s: unknown: machine %s is unreachable: %s", s.Cluster, m.Name, m.Unreachable)
		}
		if !m.Running && slices.ContainsFunc(s.Machines, func(m MachineStatus) bool { return m.Running }) {
			return fmt.Sprintf("cluster %s is degraded: machine %s is not running: start it with slipway machine start %s --name %s", s.Cluster, m.Name, m.Name, s.Cluster)
		}
		if !m.Running {
			return fmt.Sprintf("cluster %s is down: machine %s is not running: start it with slipway up --name %s", s.Cluster, m.Name, s.Cluster)
		}
	}
	for _, m := range s.Machines {
		switch {
		case m.Node == nil:
			return fmt.Sprintf("cluster %s: unknown: the agent of %s does not respond (components that it started are not affected): see slipway logs --name %s agent --machine %s",
				s.Cluster, m.Name, s.Cluster, m.Name)
		case len(m.Node.Items) == 0:
			return fmt.Sprintf("cluster %s is not ready: %s has no plan yet: run slipway up --name %s", s.Cluster, m.Name, s.Cluster)
		}
	}
	if unready > 0 {
		return fmt.Sprintf("cluster %s is not ready: %d of %s not ready", s.Cluster, unready, report.Count(total, "item"))
	}
	return ""
}

// Items returns the status of the items of one node, in the order of its plan.
func Items(ctx context.Context, inv inventory.Inventory, cluster, node string) ([]reconcile.Status, error) {
	s, err := Status(ctx, inv, cluster)
	if err != nil {
		return nil, err
	}
	for _, m := range s.Machines {
		switch {
		case m.Name != node:
		case m.Node != nil:
			return m.Node.Items, nil
		case !m.Running:
			return nil, provider.NotRunning(cluster, m.Status)
		default:
			return nil, fmt.Errorf("agent of %s: %s", node, m.AgentError)
		}
	}
	return nil, fmt.Errorf("machine %s does not exist yet", node)
}

// Trace returns the spans of the last convergence of a machine, the first one if none is named.
func Trace(ctx context.Context, inv inventory.Inventory, cluster, name string) ([]trace.Span, error) {
	machines, m, err := inv.Machine(ctx, cluster, name)
	if err != nil {
		return nil, err
	}
	if !m.Running {
		return nil, provider.NotRunning(cluster, m)
	}
	ctx, cancel := context.WithTimeout(ctx, agentclient.Timeout)
	defer cancel()
	agent, err := agentclient.Dial(provider.Agent(machines.Host(m.Name)))
	if err != nil {
		return nil, err
	}
	defer agent.Close()
	return agent.Trace(ctx)
}

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
			why := "unknown: the agent does not respond"
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
