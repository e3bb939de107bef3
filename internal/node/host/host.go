// SPDX-License-Identifier: Apache-2.0

// Package host is the machine as its agent sees it: the units that a supervisor runs, and the pods of components that the
// kubelet runs, as one. It implements [node.Host].
//
// Read [Host] first.
package host

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

// Supervisor runs the units of a machine's plan: the host's systemd, or Slipway's own supervisor.
type Supervisor interface {
	reconcile.Host
	Status() []units.Status
	Stop(ctx context.Context, name string) error
	StopAll(ctx context.Context, order []string) error
	Close() error
}

// Host is a supervisor and the components' pods. Pods need the host to restart the kubelet, and the supervisor needs the pods,
// so both are set after the host has been made and before it is used.
type Host struct {
	Supervisor
	Pods *pods.Manager
}

var _ node.Host = (*Host)(nil)

// Units is the status of all units and pods, by name.
func (h *Host) Units() []node.UnitStatus {
	var out []node.UnitStatus
	for _, u := range h.Status() {
		s := node.UnitStatus{Name: u.Name, PID: u.PID, Since: u.Since, Ready: u.Ready, Restarts: u.Restarts, Waiting: u.Waiting, Oneshot: u.Oneshot}
		if u.LastExit != nil {
			s.LastExit = u.LastExit.String()
		}
		out = append(out, s)
	}
	for _, p := range h.Pods.Status() {
		out = append(out, node.UnitStatus{Name: p.Name, PID: p.PID, Since: p.Since, Ready: p.Ready, Restarts: p.Restarts, Waiting: p.Waiting, LastExit: p.LastOutput})
	}
	slices.SortFunc(out, func(a, b node.UnitStatus) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// StopAll stops units and pods in that order. Up to the last pod it stops them one by one: the kubelet, which would start pods
// again, comes before them.
func (h *Host) StopAll(ctx context.Context, order []string) error {
	var errs []error
	last := -1
	for i, name := range order {
		if h.Pods.Has(name) {
			last = i
		}
	}
	for _, name := range order[:last+1] {
		if h.Pods.Has(name) {
			errs = append(errs, h.Pods.Stop(ctx, []string{name}))
		} else {
			errs = append(errs, h.Stop(ctx, name))
		}
	}
	return errors.Join(append(errs, h.Supervisor.StopAll(ctx, order[last+1:]))...)
}

const kubelet = "kubelet"

// RestartKubelet ends the kubelet's process; the supervisor starts it again.
func (h *Host) RestartKubelet(context.Context) error {
	for _, u := range h.Status() {
		if u.Name == kubelet && u.PID > 0 {
			return unix.Kill(u.PID, unix.SIGTERM)
		}
	}
	return errors.New("the kubelet is not running")
}

// ReportPod is [ReportUnit] for a component's pod.
func ReportPod(board *reconcile.Board, e pods.Event) {
	ref := plan.RefOf(plan.StaticPod{Name: e.Pod}).String()
	if e.Ready {
		board.MarkUp(ref)
		return
	}
	board.MarkDown(ref, e.Detail, "the kubelet, which starts it again")
}

// Reset implements [node.Host].
func (h *Host) Reset(ctx context.Context, p plan.Plan, given []string) error {
	return reset.Machine(ctx, h, p, given)
}

// ReportUnit puts a unit's own changes on the board: a unit may fail long after the loop has brought it to ready.
func ReportUnit(board *reconcile.Board, e units.Event) {
	ref := "unit/" + e.Unit
	switch e.Kind {
	case units.Exited:
		board.MarkDown(ref, e.Detail, "its supervisor, which starts it again")
	case units.Unready:
		board.MarkDown(ref, e.Detail, "the unit itself, or its supervisor, which restarts a unit that hangs")
	case units.Ready:
		board.MarkUp(ref)
	case units.Started, units.Stopped, units.Done: // by the loop, which reports it
	}
}
