// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/backend/pods"
	"github.com/slipway-project/slipway/internal/backend/reset"
	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/node"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// unitHost is the supervisor as the agent wants to see it, and the components' pods like units beside it.
type unitHost struct {
	supervisor
	pods *pods.Manager
}

// Units translates the supervisor's status.
func (h unitHost) Units() []node.UnitStatus {
	var out []node.UnitStatus
	for _, u := range h.Status() {
		s := node.UnitStatus{Name: u.Name, PID: u.PID, Since: u.Since, Ready: u.Ready, Restarts: u.Restarts, Waiting: u.Waiting, Oneshot: u.Oneshot}
		if u.LastExit != nil {
			s.LastExit = u.LastExit.String()
		}
		out = append(out, s)
	}
	for _, p := range h.pods.Status() {
		out = append(out, node.UnitStatus{Name: p.Name, PID: p.PID, Since: p.Since, Ready: p.Ready, Restarts: p.Restarts, Waiting: p.Waiting, LastExit: p.LastOutput})
	}
	slices.SortFunc(out, func(a, b node.UnitStatus) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// StopAll stops first what would start pods again, then the pods, then the rest.
func (h unitHost) StopAll(ctx context.Context, order []string) error {
	var errs []error
	last := -1
	for i, name := range order {
		if h.pods.Has(name) {
			last = i
		}
	}
	for _, name := range order[:last+1] {
		if h.pods.Has(name) {
			errs = append(errs, h.pods.Stop(ctx, []string{name}))
		} else {
			errs = append(errs, h.Stop(ctx, name))
		}
	}
	return errors.Join(append(errs, h.supervisor.StopAll(ctx, order[last+1:]))...)
}

const kubelet = "kubelet"

// restartKubelet ends the kubelet's process; its supervisor starts it again.
func restartKubelet(h supervisor) error {
	for _, u := range h.Status() {
		if u.Name == kubelet && u.PID > 0 {
			return unix.Kill(u.PID, unix.SIGTERM)
		}
	}
	return errors.New("the kubelet does not run")
}

// tellPod is tell for a component's pod.
func tellPod(board *reconcile.Board, e pods.Event) {
	ref := plan.RefOf(plan.StaticPod{Name: e.Pod}).String()
	if e.Ready {
		board.MarkUp(ref)
		return
	}
	board.MarkDown(ref, e.Detail, "the kubelet, which starts it again")
}

// Reset takes from the machine what a plan has made.
func (h unitHost) Reset(ctx context.Context, p plan.Plan, given []string) error {
	return reset.Machine(ctx, h, p, given)
}

// tell puts a unit's own changes on the board: it may fall long after the loop has brought it to ready.
func tell(board *reconcile.Board, e units.Event) {
	ref := "unit/" + e.Unit
	switch e.Kind {
	case units.Exited:
		board.MarkDown(ref, e.Detail, "its supervisor, which starts it again")
	case units.Unready:
		board.MarkDown(ref, e.Detail, "the unit itself, or else its supervisor, which restarts what hangs")
	case units.Ready:
		board.MarkUp(ref)
	case units.Started, units.Stopped, units.Done: // by the loop, which says so itself
	}
}
