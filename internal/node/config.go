// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"log/slog"

	"google.golang.org/grpc"

	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// Config is what main gives an agent.
type Config struct {
	Host  Host
	Facts machine.Facts
	Key   pin.Pin // pin of the machine's key
	// PlanFile is where the plan is kept: /var/lib/slipway/plan/plan.json.
	PlanFile string
	Socket   string // unix socket of the service, 0600; empty: none, as in the simulation
	// TraceFile keeps the spans of the last run that changed something: /var/lib/slipway/trace/last.json.
	TraceFile string
	Version   string
	Log       *slog.Logger

	// Control, if set, runs the control role with the document of the last Apply until ctx ends. It reports items of its own
	// on the board, all of them before it reports [ControlRole] ready.
	Control func(ctx context.Context, doc []byte, board *reconcile.Board) error
	// Register, if set, adds services to the socket.
	Register func(*grpc.Server)
	// Board, if set, is one that others report to as well.
	Board   *reconcile.Board
	Custody Custody // optional: of the keys, for who asks about certificates
	// Rollout, if set, is passed on to the loop.
	Rollout reconcile.RolloutLease
	// AfterStep is passed on to the loop.
	AfterStep func(n int, s plan.Step)
	// Root, if set, is in front of the paths of given files and of units' data: the simulation has several machines on one disk.
	Root string
	// Pass, if set, is called between any two things that a crash may divide.
	Pass func(step string)
}

// Host is the machine: the loop's view, and what status needs beyond it.
type Host interface {
	reconcile.Host
	Units() []UnitStatus
	// StopAll stops the units of the plan, dependents first, because the machine goes down.
	StopAll(ctx context.Context, order []string) error
	// Reset removes what the plan has made, its data too, and the given files.
	Reset(ctx context.Context, p plan.Plan, files []string) error
}
