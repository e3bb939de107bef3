// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/slipway-project/slipway/internal/backend/reset"
	"github.com/slipway-project/slipway/internal/backend/supervise"
	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/node"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// unitHost is the supervisor as the agent wants to see it.
type unitHost struct{ *supervise.Host }

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
	return out
}

// Reset takes from the machine what a plan has made.
func (h unitHost) Reset(ctx context.Context, p plan.Plan, given []string) error {
	return reset.Machine(ctx, h.Host, p, given)
}

// tell puts a unit's own changes on the board: it may fall long after the loop has brought it to ready.
func tell(board *reconcile.Board, e units.Event) {
	ref := "unit/" + e.Unit
	switch e.Kind {
	case units.Exited:
		board.Down(ref, e.Detail, "its supervisor, which starts it again")
	case units.Unready:
		board.Down(ref, e.Detail, "the unit itself, or else its supervisor, which restarts what hangs")
	case units.Ready:
		board.Rose(ref)
	case units.Started, units.Stopped, units.Done: // by the loop, which says so itself
	}
}
