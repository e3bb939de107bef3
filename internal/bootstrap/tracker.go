// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/reconcile"
	"github.com/slipway-project/slipway/internal/report"
)

// Result is the outcome of Up and Apply.
type Result struct {
	Cluster    string             `json:"cluster"`
	Release    string             `json:"release"`
	Changed    bool               `json:"changed"`
	Steps      int                `json:"steps"` // carried out on the machines
	Kubeconfig string             `json:"kubeconfig"`
	Server     string             `json:"server"`
	Elapsed    time.Duration      `json:"elapsed"` // of the whole command
	Built      time.Duration      `json:"built"`   // how long missing components took to build; 0 if there were none
	Milestones []Milestone        `json:"milestones"`
	Unready    []reconcile.Status `json:"unready,omitempty"`
}

// Milestone is a moment that users care about.
type Milestone struct {
	Name string        `json:"name"`
	At   time.Duration `json:"at"` // since the store had all components
}

// tracker reports how a run is going, collects its result, and enforces its time limit.
type tracker struct {
	report  report.Func
	started time.Time
	wait    time.Duration // 0: do not wait for the cluster
	several bool          // the cluster has several nodes

	building time.Time // when the build of missing components started; zero without one
	stored   time.Time // when the store had all components; zero before that
	deadline time.Time // for wait, which counts from when the machines are running; zero before that, and without a limit

	mu     sync.Mutex // guards the field below
	result Result
}

func newTracker(to report.Func, wait time.Duration) *tracker {
	now := time.Now()
	return &tracker{report: to.Since(now), started: now, wait: wait, result: Result{Milestones: []Milestone{}}}
}

// begin reports the release once the spec has been read.
func (t *tracker) begin(c clusterdir.Cluster) {
	nodes := 0
	for _, p := range c.Config.Pools {
		nodes += len(p.Nodes)
	}
	t.several = nodes > 1
	t.result.Cluster, t.result.Release = c.Name, c.Release.Kubernetes
	t.report(report.Event{Stage: report.StageSpec, Text: "Kubernetes " + c.Release.Kubernetes})
}

// finish completes the result. An error that was caused by the time limit becomes one of kind TimedOut.
func (t *tracker) finish(ctx context.Context, err error) (Result, error) {
	var known *report.Error
	switch {
	case err == nil:
		t.result.Elapsed = time.Since(t.started)
		t.report(report.Event{Stage: report.StageDone})
	case ctx.Err() == nil && !errors.As(err, &known) && !t.deadline.IsZero() && !time.Now().Before(t.deadline):
		err = &report.Error{Kind: report.TimedOut, Err: fmt.Errorf("cluster %s is not ready after %s; its agents continue on their own: see slipway status --name %s",
			t.result.Cluster, t.wait, t.result.Cluster)}
	}
	return t.result, err
}

// build reports the progress of a build. There is none if the store has all components.
func (t *tracker) build(e report.Event) {
	if t.building.IsZero() {
		t.building = time.Now()
	}
	t.report(e)
}

// built notes that the store has all components.
func (t *tracker) built() {
	t.stored = time.Now()
	if !t.building.IsZero() {
		t.result.Built = t.stored.Sub(t.building)
	}
}

// machinesRunning starts the time limit.
func (t *tracker) machinesRunning() {
	if t.wait > 0 && t.deadline.IsZero() {
		t.deadline = time.Now().Add(t.wait)
	}
}

// limit ends ctx when the time limit expires.
func (t *tracker) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if t.deadline.IsZero() {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, t.deadline)
}

const (
	agentLimit = 30 * time.Second // an agent answers within milliseconds, or does not start at all
	agentGrace = 10 * time.Second // the minimum, however short the time limit: without its plan a machine cannot continue on its own
)

// limitAgent ends ctx when an agent has had enough time to answer.
func (t *tracker) limitAgent(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := agentLimit
	if t.wait > 0 {
		limit = min(max(t.wait, agentGrace), agentLimit)
	}
	return context.WithTimeout(ctx, limit)
}

func (t *tracker) changed() {
	t.mu.Lock()
	t.result.Changed = true
	t.mu.Unlock()
}

func (t *tracker) addUnready(items ...reconcile.Status) {
	t.mu.Lock()
	t.result.Unready = append(t.result.Unready, items...)
	t.mu.Unlock()
}

// planned reports that a machine has a plan with that many items.
func (t *tracker) planned(name string, items int) {
	t.report(report.Event{Stage: report.StagePlan, Machine: name, Text: report.Count(items, "item"), Total: items})
}

// machineReady reports what was done to make a machine run.
func (t *tracker) machineReady(name string, c machine.Change) {
	if !c.None() {
		t.changed()
	}
	text := report.AlreadyRunning
	switch {
	case c.Created:
		text = "created"
	case c.Started:
		text = "started"
	case c.BinaryReplaced:
		text = "agent replaced"
	}
	t.report(report.Event{Stage: report.StageMachine, Machine: name, Phase: "ready", Text: text})
}

// item records an item's new status and the steps that its agent has taken since the last one.
func (t *tracker) item(name string, s reconcile.Status, steps int) {
	t.mu.Lock()
	t.result.Steps += steps
	t.result.Changed = t.result.Changed || steps > 0
	t.milestone(s)
	t.mu.Unlock()
	t.report(report.Item(name, s))
}

// milestone records when an item that users care about became ready, counted from when the store had all components.
func (t *tracker) milestone(s reconcile.Status) {
	start := t.stored
	if start.IsZero() { // apply uploads components while machines boot
		start = t.started
	}
	if s.Phase != reconcile.Ready || s.Since.Before(start) {
		return
	}
	name, ok := map[string]string{
		"unit/etcd":                "etcd ready",
		"staticpod/etcd":           "etcd ready",
		"unit/kube-apiserver":      "API ready",
		"staticpod/kube-apiserver": "API ready",
		"control/dns":              "cluster DNS answers",
	}[s.Ref]
	if node, is := strings.CutPrefix(s.Ref, "control/node/"); is {
		name, ok = "node Ready", true
		if t.several {
			name = "node " + node + " Ready"
		}
	}
	if !ok || slices.ContainsFunc(t.result.Milestones, func(m Milestone) bool { return m.Name == name }) {
		return
	}
	t.result.Milestones = append(t.result.Milestones, Milestone{name, s.Since.Sub(start)})
	slices.SortFunc(t.result.Milestones, func(a, b Milestone) int { return cmp.Compare(a.At, b.At) })
}
