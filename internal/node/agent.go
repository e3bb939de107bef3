// SPDX-License-Identifier: Apache-2.0

// Package node is the agent of a machine. It stores the node's plan, brings the machine to the plan's state, and reports the status
// over a unix socket. It does not plan. After a reboot it starts the node from the stored plan, without a network or other machines.
//
// Read [Agent] first, then server.go for the requests of the operator.
package node

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// Config lists the dependencies of an Agent.
type Config struct {
	Host  Host
	Facts machine.Facts
	Key   pin.Pin // pin of the machine's key
	// PlanFile stores the plan: /var/lib/slipway/plan/plan.json.
	PlanFile string
	Socket   string // unix socket of the service, mode 0600; empty: no service, as in the simulation
	// TraceFile stores the spans of the last run that changed something: /var/lib/slipway/trace/last.json.
	TraceFile string
	Version   string
	Log       *slog.Logger

	// Control, if set, runs the control role with the document of the last plan until ctx ends. It sets items of its own on the
	// board, all of them before it reports [ControlRole] ready.
	Control func(ctx context.Context, doc []byte, board *reconcile.Board) error
	// Register, if set, adds services to the socket.
	Register func(*grpc.Server)
	// Board, if set, is shared with others that report to it.
	Board   *reconcile.Board
	Custody Custody // optional: the keys of this machine, for requests about certificates
	// Rollout, if set, is passed on to the reconcile loop.
	Rollout reconcile.RolloutLease
	// AfterStep is passed on to the reconcile loop.
	AfterStep func(n int, s plan.Step)
	// Root, if set, is a prefix of the paths of ticket files and unit data. Simulated machines share one disk.
	Root string
	// Pass, if set, is called between any two actions that a crash may separate.
	Pass func(step string)
}

// Host is the machine: what the reconcile loop needs, and what status, shutdown and reset need in addition.
type Host interface {
	reconcile.Host
	Units() []UnitStatus
	// StopAll stops these units in this order, because the machine shuts down.
	StopAll(ctx context.Context, order []string) error
	// Reset removes what the plan has created, including data, and the given files.
	Reset(ctx context.Context, p plan.Plan, files []string) error
}

// UnitStatus is the state of a supervised process.
type UnitStatus struct {
	Name     string
	PID      int
	Since    time.Time
	Ready    bool
	Restarts int
	LastExit string
	Waiting  string // what it waits for before it starts
	Oneshot  bool
}

// Enrolment is the machine's membership in a cluster.
type Enrolment interface {
	State() Enrolled
	// Join stores the cluster to join on a free machine, and returns when that is on the disk.
	Join(ctx context.Context, t JoinTarget) error
	// Reset makes the machine free again.
	Reset(ctx context.Context, cluster string, lost bool) error
	// Announce sets the enrolment's items on the board after the board was reset.
	Announce()
	// WaitForAddress delays the plan while the machine may be a copy of another one. It also returns when ctx ends.
	WaitForAddress(ctx context.Context)
}

// Enrolled is the state of the node lock.
type Enrolled struct{ Phase, Cluster, Node string }

// JoinTarget is the cluster to join.
type JoinTarget struct {
	Endpoints []string // host:port of the join services
	Pin       pin.Pin  // of the join CA
	Token     string   // secret; empty: the cluster knows the machine's key
	Node      string   // optional
}

// Agent is the agent of one machine. It is safe for concurrent use.
type Agent struct {
	cfg   Config
	board *reconcile.Board
	apply chan chan struct{} // a plan was stored; the loop closes the value when it has started the plan
	probe chan struct{}      // probe the machine now
	stop  chan chan struct{} // stop the plan; the loop closes the value when it has ended
	over  chan struct{}      // closed when the agent itself has ended

	enrolment Enrolment // nil where plans are handed over by other means; set by Run

	mu           sync.Mutex // guards the fields below
	stored       stored
	lost         error // why stored is empty although there is a file
	probesWanted int   // number of requested probes
	probesDone   int   // the number of probesWanted that the last probe covers
	idle         bool  // everything was ready at the last probe, and none is in progress
	ended        bool  // the control role ended with an error
}

// Items of the board that are not part of a plan.
const (
	ControlRole = "control/role" // the control role itself
	StoredPlan  = "node/plan"    // only while the stored plan is unreadable
)

// probeInterval is far below a third of the shortest certificate lifetime.
const probeInterval = time.Hour

// New loads the stored plan. If it is unreadable, the agent reports that on the board and does not change the machine until it
// receives a plan.
func New(cfg Config) (*Agent, error) {
	if cfg.Board == nil {
		cfg.Board = reconcile.NewBoard()
	}
	if cfg.Pass == nil {
		cfg.Pass = func(string) {}
	}
	a := &Agent{cfg: cfg, board: cfg.Board, apply: make(chan chan struct{}, 1), probe: make(chan struct{}, 1), stop: make(chan chan struct{}), over: make(chan struct{})}
	switch found, err := a.load(); {
	case err != nil:
		a.lost, a.stored = err, stored{}
		cfg.Log.Error("load plan", "error", err)
		a.board.Set(reconcile.Status{Ref: StoredPlan, Phase: reconcile.Failing, Error: err.Error(), For: wait.For{Who: "slipway up"}})
	case found && !a.stored.Wiping && a.stored.Want.Version != 0:
		a.apply <- make(chan struct{})
	}
	return a, nil
}

// Run serves the socket and runs the plan until ctx ends. It may be called once only. Without an enrolment the machine can neither
// join nor be reset: plans are handed over by other means.
func (a *Agent) Run(ctx context.Context, e Enrolment) error {
	a.enrolment = e
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.serve(ctx) })
	group.Go(func() error { return a.loop(ctx) })
	return group.Wait()
}

// Apply stores a plan and starts it. It reports whether the plan or the control document differ from the stored ones; if not, it
// only probes the machine again and does not interrupt the work in progress.
func (a *Agent) Apply(ctx context.Context, want plan.Plan, control []byte) (changed bool, err error) {
	changed, err = a.store(want, control)
	if err != nil {
		return false, err
	}
	if !changed && a.probeNow() {
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
		return changed, ctx.Err() // the plan is stored, so the loop will start it
	}
	return changed, nil
}

// Stop stops the node's processes in reverse order of their dependencies. It stops the kubelet before static pods, because it would
// restart them.
func (a *Agent) Stop(ctx context.Context) error {
	var order []string
	now, pods := a.current(), false
	for _, e := range slices.Backward(now.Want.Entries) {
		switch it := e.Item.(type) {
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

// APIAddress returns host:port of the API server in this node's kubeconfigs, or fallback while there is no plan.
func (a *Agent) APIAddress(fallback string) string {
	for _, e := range a.current().Want.Entries {
		k, ok := e.Item.(plan.Kubeconfig)
		if !ok {
			continue
		}
		if u, err := url.Parse(k.Server); err == nil && u.Port() != "" {
			return u.Host
		}
	}
	return fallback
}

// DataGuard returns the data guard of a process in the stored plan, and false if the plan has no such process.
func (a *Agent) DataGuard(name string) (plan.DataGuard, bool) {
	e, ok := a.current().Want.Process(name)
	return plan.DataGuardOf(e.Item), ok
}

// Process returns the reference of a component in the stored plan, which is a unit or a static pod.
func (a *Agent) Process(name string) string {
	if e, ok := a.current().Want.Process(name); ok {
		return e.Ref.String()
	}
	return plan.RefOf(plan.Unit{Name: name}).String()
}

// Running reports whether a unit has a process.
func (a *Agent) Running(name string) bool {
	return slices.ContainsFunc(a.cfg.Host.Units(), func(u UnitStatus) bool { return u.Name == name && u.PID > 0 })
}

// loop runs the current plan. A new plan replaces the running one and restarts the control role.
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
		if a.Wiping() { // the plan was stored before the wipe began: do not start it
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
		group.Go(func() error { return a.storeTrace(work) })
		if a.cfg.Control != nil && len(now.Control) > 0 {
			group.Go(func() error { return a.control(work, now.Control) })
		}
	}
}

// announce sets all items on the board before the first one is worked on. Otherwise a client could take an incomplete board for a
// finished one.
func (a *Agent) announce(now stored) {
	a.mu.Lock()
	a.idle, a.ended = false, false
	a.probesWanted++ // the node is not converged before the first probe has ended
	a.mu.Unlock()
	a.board.Reset()
	a.board.Announce(now.Want.Plan)
	if e := a.enrolment; e != nil {
		e.Announce()
	}
	if a.cfg.Control != nil && len(now.Control) > 0 {
		a.board.Set(reconcile.Status{Ref: ControlRole, Phase: reconcile.Waiting})
	}
}

// converge brings the machine to the plan's state and probes it at intervals. A certificate that is due for renewal and a file that
// was modified are differences like any other.
func (a *Agent) converge(ctx context.Context, now stored) error {
	loop := reconcile.Loop{Host: a.cfg.Host, Board: a.board, Log: a.cfg.Log, Rollout: a.cfg.Rollout, AfterStep: a.cfg.AfterStep}
	before := now.Before.Plan
	if e := a.enrolment; e != nil {
		e.WaitForAddress(ctx)
	}
	for {
		a.mu.Lock()
		covered := a.probesWanted
		a.idle = false
		a.mu.Unlock()
		if loop.Converge(ctx, now.Want.Plan, before) != nil {
			return nil //nolint:nilerr // ctx has ended; Converge retries all other errors
		}
		_, steps := a.board.All()
		a.cfg.Log.Info("converged", "node", now.Want.Node, "steps", steps)
		a.deleteBefore(now)
		before = plan.Plan{}
		a.mu.Lock()
		a.probesDone, a.idle = covered, covered == a.probesWanted
		a.mu.Unlock()
		a.board.Resend() // wakes those who wait for the end of the probe

		timer := time.NewTimer(probeInterval - probeInterval/10 + rand.N(probeInterval/5)) // the jitter spreads the load of many machines
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-a.probe:
			timer.Stop()
		case <-timer.C:
		}
	}
}

func (a *Agent) control(ctx context.Context, doc []byte) error {
	err := a.cfg.Control(ctx, doc, a.board)
	if err != nil && ctx.Err() == nil {
		a.cfg.Log.Error("control role ended", "error", err)
		a.board.Set(reconcile.Status{Ref: ControlRole, Phase: reconcile.Failing, Error: err.Error()})
		a.mu.Lock()
		a.ended = true
		a.mu.Unlock()
	}
	return nil
}

// probeNow requests another probe of the machine; until it has ended, the node is not converged. It returns false if the control
// role has ended, because only an Apply restarts it.
func (a *Agent) probeNow() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return false
	}
	a.probesWanted++
	if a.idle { // otherwise the work in progress continues its count
		a.board.ResetSteps()
	}
	select {
	case a.probe <- struct{}{}:
	default: // the last request is still pending
	}
	return true
}

// converged reports whether all items are ready, including those of the control role, and the machine was probed since the last
// request.
func (a *Agent) converged(all []reconcile.Status) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return allReady(all) && a.probesDone == a.probesWanted
}

func allReady(all []reconcile.Status) bool {
	for _, item := range all {
		if item.Phase != reconcile.Ready {
			return false
		}
	}
	return len(all) > 0
}
