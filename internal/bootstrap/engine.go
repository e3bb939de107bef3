// SPDX-License-Identifier: Apache-2.0

package bootstrap

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
	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/core/planner"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/inventory"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/operate"
	"github.com/slipway-project/slipway/internal/provider"
	"github.com/slipway-project/slipway/internal/reconcile"
	"github.com/slipway-project/slipway/internal/report"
	"github.com/slipway-project/slipway/internal/sleep"
)

// engine brings the machines of one provider to one cluster. It is one run of Up or Apply.
type engine struct {
	*tracker
	inv        inventory.Inventory
	cluster    clusterdir.Cluster
	components planner.Components
	machines   provider.Machines
	lock       *clusterLock

	existing []machine.Status      // before this run
	phases   map[string]lock.Phase // of machines whose agents were asked already; nil for local ones
	removed  []string              // machines of the stored spec that the new one does not have
	init     initRequest           // empty when none is stored

	booting sync.Mutex // one machine at a time is restarted, under the cluster's lock
}

func newEngine(inv inventory.Inventory, c clusterdir.Cluster, components planner.Components, t *tracker) *engine {
	return &engine{
		tracker: t, inv: inv, cluster: c, components: components,
		lock: &clusterLock{dir: inv.Dir, cluster: c, report: t.report},
	}
}

// run brings the cluster to its spec. The lock must be held; it is released while the run only waits.
func (e *engine) run(ctx context.Context) error {
	if err := e.checkSpec(); err != nil {
		return err
	}
	return e.converge(ctx)
}

// checkSpec keeps the nodes' indexes, and refuses a spec that changes what cannot be changed in an existing cluster.
func (e *engine) checkSpec() error {
	e.cluster.Config = keepIndexes(e.cluster.Config, e.existing)
	changes, removed, err := frozenChanges(e.inv.Dir, e.cluster, e.existing)
	if err != nil {
		return err
	}
	e.removed = removed
	if len(changes) > 0 {
		return invalid("cluster %s exists, and this cannot be changed in it:\n  %s\nundo the change, or create a new cluster: slipway down --name %s",
			e.cluster.Name, strings.Join(changes, "\n  "), e.cluster.Name)
	}
	return nil
}

// converge brings all machines to one cluster: the bootstrap node creates it, machines that are in it get their plans, and the
// others join.
func (e *engine) converge(ctx context.Context) error {
	if err := e.removeFreeMachines(ctx); err != nil {
		return err
	}
	all, err := e.startMachines(ctx)
	if err != nil {
		return err
	}
	defer all.close()
	id, err := all.clusterID()
	if err != nil {
		return err
	}
	first, err := all.bootstrapNode()
	if err != nil {
		return err
	}
	if id == "" {
		err = e.requestInit(ctx, all, first)
	} else {
		err = errors.Join(e.applyPlans(ctx, all), e.forgetInitRequest())
	}
	if err != nil {
		return err
	}
	if err := e.requestJoins(ctx, all, first); err != nil {
		return err
	}
	e.lock.release() // a run that corrects this one must not have to wait for it
	if err := e.follow(ctx, all, first); err != nil {
		return err
	}
	if err := e.lock.unchanged(); err != nil {
		return err
	}
	a, err := operate.AccessThrough(ctx, e.inv.Dir, e.machines, e.cluster.Name, first.Name)
	if err != nil && (e.wait > 0 || !errors.Is(err, operate.ErrNoKubeconfig)) {
		return err
	}
	e.result.Kubeconfig, e.result.Server = a.Kubeconfig, a.Server
	return nil
}

// removeFreeMachines removes machines that the spec no longer has. Only a machine that says itself that it belongs to no
// cluster is removed: from the others, the cluster has to be released first.
func (e *engine) removeFreeMachines(ctx context.Context) error {
	var free []string
	for _, name := range e.removed {
		i := slices.IndexFunc(e.existing, func(m machine.Status) bool { return m.Name == name })
		if i < 0 {
			continue
		}
		state := "down"
		if e.existing[i].Running {
			phase, err := e.phase(ctx, name)
			if err != nil {
				return err
			}
			state = string(phase)
		}
		if state != string(lock.Free) {
			return invalid("spec.pools: machine %s is not in the spec, and it is %s: remove it from the cluster first: slipway node remove %s --name %s, then slipway node reset %s --name %s",
				name, state, name, e.cluster.Name, name, e.cluster.Name)
		}
		free = append(free, name)
	}
	for _, name := range free {
		if err := e.machines.Remove(ctx, name); err != nil {
			return fmt.Errorf("machine %s: %w", name, err)
		}
		e.changed()
		e.report(report.Event{Stage: report.StageMachine, Machine: name, Phase: "ready", Text: "removed"})
	}
	return nil
}

func (e *engine) phase(ctx context.Context, name string) (lock.Phase, error) {
	limited, cancel := e.limitAgent(ctx)
	defer cancel()
	agent, err := agentclient.Dial(provider.Agent(e.machines.Host(name)))
	if err != nil {
		return "", err
	}
	defer agent.Close()
	i, err := agent.Info(limited)
	return i.Phase, err
}

// startMachines makes every machine run and asks each agent about its machine.
func (e *engine) startMachines(ctx context.Context) (targets, error) {
	all := specTargets(e.cluster.Config)
	for _, t := range all {
		if phase, known := e.phases[t.Name]; known {
			t.Phase = phase
		}
	}
	if err := e.prepareInit(ctx, all); err != nil {
		return nil, err
	}
	boots, booting := errgroup.WithContext(ctx)
	boots.SetLimit(4)
	for _, t := range all {
		boots.Go(func() error { return e.ensure(booting, t) })
	}
	if err := boots.Wait(); err != nil {
		return nil, err
	}
	e.machinesRunning()
	asks, asking := errgroup.WithContext(ctx)
	for _, t := range all {
		asks.Go(func() error { return e.connect(asking, t) })
	}
	if err := asks.Wait(); err != nil {
		all.close()
		return nil, err
	}
	return all, nil
}

// ensure makes a machine exist and run.
func (e *engine) ensure(ctx context.Context, t *target) error {
	change, err := e.machines.Ensure(ctx, t.NodeName)
	if err != nil {
		return fmt.Errorf("machine %s: %w", t.Name, err)
	}
	e.machineReady(t.Name, change)
	return nil
}

// connect connects to a machine's agent and asks it about the machine.
func (e *engine) connect(ctx context.Context, t *target) error {
	started := time.Now()
	limited, cancel := e.limitAgent(ctx)
	defer cancel()
	var err error
	if t.agent, err = agentclient.Dial(provider.Agent(e.machines.Host(t.Name))); err != nil {
		return err
	}
	if err := t.refresh(limited); err != nil {
		if !errors.Is(limited.Err(), context.DeadlineExceeded) {
			return err
		}
		silent := time.Since(started).Round(time.Second)
		e.addUnready(reconcile.Status{
			Ref: "machine/" + t.Name, Phase: reconcile.Waiting, For: wait.For{Since: started, What: "its agent"}, Error: fmt.Sprintf("the agent has not responded for %s", silent),
		})
		return &report.Error{Kind: report.TimedOut, Err: fmt.Errorf("the agent of %s has not responded for %s: see slipway logs --name %s agent --machine %s: %w",
			t.Name, silent, e.cluster.Name, t.Name, err)}
	}
	if !t.Address.IsValid() {
		t.Address = t.facts.Address
	}
	if t.Phase == lock.Committed && t.Node != t.Name {
		return fmt.Errorf("machine %s is node %s of a cluster: run slipway down --name %s, or slipway node reset %s", t.Name, t.Node, e.cluster.Name, t.Name)
	}
	return nil
}

// plan plans for one machine. The spec is stored once nothing can refuse it any more, and before any machine has its plan.
func (e *engine) plan(all targets, t *target) (nodePlan, error) {
	p, err := all.plan(e.cluster.Config, t.Name, e.components)
	if err != nil {
		return nodePlan{}, err
	}
	return p, e.lock.store()
}

// applyPlans hands plans to the machines that are in the cluster, control planes first: they admit the others.
func (e *engine) applyPlans(ctx context.Context, all targets) error {
	for _, controlPlanes := range []bool{true, false} {
		for _, t := range all {
			if t.Phase != lock.Committed || t.isControlPlane() != controlPlanes {
				continue
			}
			p, err := e.plan(all, t)
			if err != nil {
				return err
			}
			limited, cancel := e.limitAgent(ctx)
			changed, err := t.agent.Apply(limited, p.plan, p.control)
			cancel()
			if err != nil {
				return fmt.Errorf("machine %s: %w", t.Name, err)
			}
			if changed {
				e.changed()
			}
			e.planned(t.Name, len(p.plan.Entries))
		}
	}
	return nil
}

// requestJoins tells every free machine which cluster to join as soon as that is known; from then on the machine does not need
// this run. A machine that is in the cluster is told the endpoints again, in case it has lost them; failing to do so is ignored.
func (e *engine) requestJoins(ctx context.Context, all targets, first *target) error {
	for _, t := range all {
		if t == first {
			continue
		}
		if t.Phase == lock.Committed {
			limited, cancel := context.WithTimeout(ctx, agentclient.Timeout)
			if pin, err := e.joinCAPin(limited, first.Name); err == nil {
				_ = t.agent.Join(limited, agentclient.JoinRequest{Endpoints: all.joinEndpoints(t), Pin: pin, Node: t.Name})
			}
			cancel()
			continue
		}
		if err := e.requestJoin(ctx, all, first, t); err != nil {
			return err
		}
		e.changed()
		e.report(report.Event{Stage: report.StagePlan, Machine: t.Name, Text: "joining"})
	}
	return nil
}

// requestJoin has a machine try to join now, unless it has joined already.
func (e *engine) requestJoin(ctx context.Context, all targets, first, t *target) error {
	if t.Phase == lock.Committed {
		return nil
	}
	limited, cancel := e.limitAgent(ctx)
	defer cancel()
	pin, err := e.awaitPin(limited, first.Name)
	if err != nil {
		return err
	}
	if err := t.agent.Join(limited, agentclient.JoinRequest{Endpoints: all.joinEndpoints(t), Pin: pin, Node: t.Name}); err != nil {
		return fmt.Errorf("machine %s: %w", t.Name, err)
	}
	return nil
}

// follow watches all machines until they are ready, without holding the lock. The agents continue on their own when the time
// limit expires.
func (e *engine) follow(ctx context.Context, all targets, first *target) error {
	limited, cancel := e.limit(ctx)
	defer cancel()
	created := make(chan struct{})
	var once sync.Once
	group, work := errgroup.WithContext(limited)
	group.Go(func() error {
		return e.keepRunning(work, first, func(ctx context.Context) error {
			both, ctx := errgroup.WithContext(ctx)
			both.Go(func() error {
				err := e.awaitInit(ctx, first)
				if err == nil {
					once.Do(func() { close(created) })
				}
				return err
			})
			both.Go(func() error { return e.await(ctx, first) }) // shows progress meanwhile
			return both.Wait()
		})
	})
	for _, t := range all {
		if t == first {
			continue
		}
		group.Go(func() error {
			return e.keepRunning(work, t, func(ctx context.Context) error {
				select {
				case <-created:
				case <-ctx.Done():
					return ctx.Err()
				}
				if err := e.requestJoin(ctx, all, first, t); err != nil { // makes its agent try at once
					return err
				}
				return e.awaitMember(ctx, t)
			})
		})
	}
	return group.Wait()
}

// await watches until everything on the machine is ready. If the run does not wait, it only records what is not ready now.
func (e *engine) await(ctx context.Context, t *target) error {
	if e.wait == 0 {
		limited, cancel := e.limitAgent(ctx)
		defer cancel()
		if s, err := t.agent.Status(limited); err == nil {
			e.addUnready(s.Unready()...)
		}
		return nil
	}
	last := map[string]reconcile.Status{}
	before := 0
	err := t.agent.Watch(ctx, func(s reconcile.Status, converged bool, steps int) bool {
		last[s.Ref] = s
		e.item(t.Name, s, steps-before)
		before = steps
		return converged
	})
	if err != nil {
		e.addUnready(agentclient.Unready(last)...)
	}
	return err
}

// removedAfter is how long a machine may take to become ready before the cluster is asked whether it still has the machine.
const removedAfter = 2 * time.Second

// awaitMember is await, but fails with instructions if the cluster has removed the machine, which would never become ready.
func (e *engine) awaitMember(ctx context.Context, t *target) error {
	if t.Phase != lock.Committed || t.Key == "" || e.wait == 0 {
		return e.await(ctx, t)
	}
	group, both := errgroup.WithContext(ctx)
	asking, stop := context.WithCancel(both)
	group.Go(func() error {
		defer stop()
		return e.await(both, t)
	})
	group.Go(func() error {
		for sleep.For(asking, removedAfter) == nil {
			nodes, err := operate.Nodes(asking, e.inv, e.cluster.Name)
			switch {
			case err != nil:
				continue
			case asking.Err() == nil && wasRemoved(nodes, t.Membership):
				return fmt.Errorf("machine %s was removed from cluster %s but has not been reset: run slipway node reset %s --name %s, and slipway up admits it as a new machine; or remove it from the spec",
					t.Name, e.cluster.Name, t.Name, e.cluster.Name)
			}
			return nil
		}
		return nil
	})
	return group.Wait()
}

// wasRemoved reports whether the cluster's records are available and have neither the machine nor another one in its place.
// Only the records have keys: nodes without any key say nothing.
func wasRemoved(nodes []operate.Node, m agentclient.Membership) bool {
	return slices.ContainsFunc(nodes, func(n operate.Node) bool { return n.Key != "" }) &&
		!slices.ContainsFunc(nodes, func(n operate.Node) bool { return n.Key != "" && (n.Key == string(m.Key) || n.Name == m.Node) })
}

var errMachineDown = errors.New("the machine went down while slipway was working on it")

const maxBoots = 3 // a machine that goes down this often will not stay up at the next boot

// keepRunning does work for a machine, and starts the machine again when it goes down meanwhile.
func (e *engine) keepRunning(ctx context.Context, t *target, work func(ctx context.Context) error) error {
	for boot := 1; ; boot++ {
		err := whileRunning(ctx, e.machines.Host(t.Name), work)
		if !errors.Is(err, errMachineDown) {
			return err
		}
		if boot == maxBoots {
			return fmt.Errorf("machine %s: %w, %d times: see slipway logs --name %s machine --machine %s", t.Name, err, maxBoots, e.cluster.Name, t.Name)
		}
		e.report(report.Event{Stage: report.StageMachine, Machine: t.Name, Phase: "starting", Text: "it went down, restarting it"})
		if err := e.restart(ctx, t); err != nil {
			return err
		}
	}
}

// restart boots a machine again, under the cluster's lock.
func (e *engine) restart(ctx context.Context, t *target) error {
	e.booting.Lock()
	defer e.booting.Unlock()
	if err := e.lock.acquire(ctx); err != nil {
		return err
	}
	defer e.lock.release()
	return e.ensure(ctx, t)
}

// whileRunning does work that is canceled when the machine goes down; it then fails with errMachineDown.
func whileRunning(ctx context.Context, host provider.Host, work func(ctx context.Context) error) error {
	working, stop := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	down := false // the cause of working does not tell: it may be another machine's end
	watching.Go(func() {
		if host.AwaitDown(working) == nil {
			down = true
			stop(errMachineDown)
		}
	})
	err := work(working)
	stop(nil) // the first cause is kept
	watching.Wait()
	if err != nil && down {
		return errMachineDown
	}
	return err
}
