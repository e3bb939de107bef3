// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/reconcile"
)

// together brings all machines to one cluster: the first makes it, those that are in it get their plans, the others join.
func (u *up) together(ctx context.Context, machines provider) error {
	if err := u.dismiss(ctx, machines); err != nil {
		return err
	}
	all, err := u.raise(ctx, machines)
	if err != nil {
		return err
	}
	defer all.close()
	id, err := all.cluster()
	if err != nil {
		return err
	}
	first, err := all.founder()
	if err != nil {
		return err
	}
	if id == "" {
		err = u.found(ctx, machines, all, first)
	} else {
		err = errors.Join(u.handOver(ctx, all), u.forgetFounding())
	}
	if err != nil {
		return err
	}
	if err := u.invite(ctx, machines, all, first); err != nil {
		return err
	}
	u.letGo() // so that an up that corrects this one need not wait for it
	if err := u.follow(ctx, machines, all, first); err != nil {
		return err
	}
	if err := u.stillOurs(); err != nil {
		return err
	}
	return u.reachable(ctx, machines, first.Name)
}

// follow watches all machines until they are ready, without the lock. On its time limit everything goes on without us.
func (u *up) follow(ctx context.Context, machines provider, all fleet, first *member) error {
	limited, cancel := u.limit(ctx)
	defer cancel()
	made := make(chan struct{})
	var once sync.Once
	group, work := errgroup.WithContext(limited)
	group.Go(func() error {
		return u.alive(work, machines, first, func(ctx context.Context) error {
			both, ctx := errgroup.WithContext(ctx)
			both.Go(func() error {
				err := u.founded(ctx, machines, first)
				if err == nil {
					once.Do(func() { close(made) })
				}
				return err
			})
			both.Go(func() error { return u.await(ctx, first) }) // how it gets on is seen meanwhile, and what keeps it
			return both.Wait()
		})
	})
	for _, m := range all {
		if m == first {
			continue
		}
		group.Go(func() error {
			return u.alive(work, machines, m, func(ctx context.Context) error {
				select {
				case <-made:
				case <-ctx.Done():
					return ctx.Err()
				}
				if err := u.tell(ctx, machines, all, first, m); err != nil { // it need not wait for its next try
					return err
				}
				return u.awaitKnown(ctx, m)
			})
		})
	}
	return group.Wait()
}

// handOver gives their plans to the machines that are in the cluster, control planes first: they let the others in.
func (u *up) handOver(ctx context.Context, all fleet) error {
	for _, controls := range []bool{true, false} {
		for _, m := range all {
			if m.phase != committedPhase || m.controls() != controls {
				continue
			}
			d, err := u.decide(all, m)
			if err != nil {
				return err
			}
			limited, cancel := context.WithTimeout(ctx, u.handOverLimit())
			changed, err := m.agent.Apply(limited, d.plan, d.doc)
			cancel()
			if err != nil {
				return fmt.Errorf("machine %s: %w", m.Name, err)
			}
			if changed {
				u.changed()
			}
			u.report(Event{Stage: StagePlan, Machine: m.Name, Text: fmt.Sprintf("%d items", len(d.plan.Entries)), Total: len(d.plan.Entries)})
		}
	}
	return nil
}

// await watches until everything on the machine is ready. On its time limit the work goes on without us.
func (u *up) await(ctx context.Context, m *member) error {
	if u.o.Wait == 0 {
		return u.glance(ctx, m)
	}
	last := map[string]reconcile.Status{}
	before := 0
	err := m.agent.Watch(ctx, func(s reconcile.Status, converged bool, steps int) bool {
		last[s.Ref] = s
		u.mu.Lock()
		u.result.Steps += steps - before
		u.result.Changed = u.result.Changed || steps > 0
		u.milestone(s)
		u.mu.Unlock()
		before = steps
		u.report(convergeEvent(m.Name, s))
		return converged
	})
	if err != nil {
		u.mu.Lock()
		u.result.Unready = append(u.result.Unready, unready(last)...)
		u.mu.Unlock()
	}
	return err
}

// glance tells what is unready now, without waiting; only to be told.
func (u *up) glance(ctx context.Context, m *member) error {
	limited, cancel := context.WithTimeout(ctx, u.handOverLimit())
	defer cancel()
	if s, err := m.agent.Status(limited); err == nil {
		u.mu.Lock()
		u.result.Unready = append(u.result.Unready, s.Unready()...)
		u.mu.Unlock()
	}
	return nil
}

func (u *up) changed() {
	u.mu.Lock()
	u.result.Changed = true
	u.mu.Unlock()
}

// alive does work for a machine, and starts the machine again when it goes down meanwhile: nobody else would.
func (u *up) alive(ctx context.Context, machines provider, m *member, work func(ctx context.Context) error) error {
	for boot := 1; ; boot++ {
		err := whileRunning(ctx, machines.At(m.Name), work)
		if !errors.Is(err, errMachineDown) {
			return err
		}
		if boot == boots {
			return fmt.Errorf("machine %s: %w, %d times: see slipway logs --name %s machine --machine %s", m.Name, err, boots, u.cluster.Name, m.Name)
		}
		u.report(Event{Stage: StageMachine, Machine: m.Name, Phase: "starting", Text: "it went down, starting it again"})
		if err := u.again(ctx, machines, m); err != nil {
			return err
		}
	}
}

// again boots a machine once more, under the cluster's lock.
func (u *up) again(ctx context.Context, machines provider, m *member) error {
	u.booting.Lock()
	defer u.booting.Unlock()
	if err := u.hold(ctx); err != nil {
		return err
	}
	defer u.letGo()
	return u.machine(ctx, machines, m.NodeName)
}

func (u *up) several() bool {
	nodes := 0
	for _, p := range u.cluster.Config.Pools {
		nodes += len(p.Nodes)
	}
	return nodes > 1
}
