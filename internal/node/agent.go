// SPDX-License-Identifier: Apache-2.0

// Package node is the agent on a machine: it takes a finished plan, keeps it, runs the loop and reports. It never plans,
// and it needs no network and no other machine to bring its node up again from the plan on its disk.
//
// Read [Agent] first, then server.go for what the operator can ask.
package node

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// Config is what main gives an agent.
type Config struct {
	Host  Host
	Facts Facts
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
	// Enrolment is how the machine comes to a cluster and out of it; nil where plans are handed over by hand.
	Enrolment func() Enrolment
	// Announce, if set, puts on the board what else the agent waits for; it is called each time the board begins anew.
	Announce func()
	// Hold, if set, is called before the first look at the machine for a plan, and returns when it may begin or ctx has ended.
	Hold func(ctx context.Context)
	// Register, if set, adds services to the socket.
	Register func(*grpc.Server)
	// Board, if set, is one that others report to as well.
	Board   *reconcile.Board
	Custody Custody // optional: of the keys, for who asks about certificates
	// Turn, if set, is passed on to the loop.
	Turn reconcile.Turn
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

// Facts describe the machine to whoever plans for it.
type Facts struct {
	Address      string
	Key          string // pin of the machine's key
	CgroupV1     bool
	OOMScoreAdj  bool
	DefaultRoute bool
	UpstreamDNS  bool // /etc/resolv.conf names a server beyond loopback
}

// Enrolment is the machine's way into a cluster and out of it.
type Enrolment interface {
	State() Enrolled
	// Join tells a free machine which cluster to join; it returns when that is kept.
	Join(ctx context.Context, t JoinTarget) error
	// Reset takes the machine out of its cluster.
	Reset(ctx context.Context, cluster string, lost bool) error
}

// Enrolled is where a machine stands.
type Enrolled struct{ Phase, Cluster, Node string }

// JoinTarget says which cluster to join.
type JoinTarget struct {
	Endpoints []string // host:port
	Pin       string   // of the join CA
	Token     string   // secret; empty: the cluster knows the machine's key
	Node      string   // optional
}

// Agent is one machine's agent.
type Agent struct {
	cfg   Config
	board *reconcile.Board
	apply chan chan struct{} // a plan has been kept; what is sent is closed when the loop has taken it up
	look  chan struct{}      // the plan was handed over again: look at once
	stop  chan chan struct{} // end the loop; what is sent is closed when it has ended
	over  chan struct{}      // closed when the agent itself has ended

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
		a.board.Set(reconcile.Status{Ref: KeptPlan, Phase: reconcile.Failing, Error: err.Error(), Provider: "slipway up"})
	case found && !a.kept.Wiping && a.kept.Want.Version != 0:
		a.apply <- make(chan struct{})
	}
	return a, nil
}

// Run serves the operator and converges until ctx ends. It is called once.
func (a *Agent) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.serve(ctx) })
	group.Go(func() error { return a.loop(ctx) })
	return group.Wait()
}

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
	if a.cfg.Announce != nil {
		a.cfg.Announce()
	}
	if a.cfg.Control != nil && len(now.Control) > 0 {
		a.board.Set(reconcile.Status{Ref: ControlRole, Phase: reconcile.Waiting})
	}
}

// converge brings the machine to the plan and looks again from time to time: a certificate whose renewal is due and a file
// that somebody has changed are differences like any other.
func (a *Agent) converge(ctx context.Context, now kept) error {
	loop := reconcile.Loop{Host: a.cfg.Host, Board: a.board, Log: a.cfg.Log, Turn: a.cfg.Turn, AfterStep: a.cfg.AfterStep}
	before := now.Before.Plan
	if a.cfg.Hold != nil {
		a.cfg.Hold(ctx)
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
