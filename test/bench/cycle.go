// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/launch"
	"github.com/slipway-project/slipway/internal/trace"
)

// cycleLimit is far beyond any boot: what takes longer hangs.
const cycleLimit = 5 * time.Minute

// cycle boots a cluster, measures, and destroys it unless it is to be kept. Idle, if there is one, is called while the cluster has nothing
// to do. Form are more arguments of slipway up.
func (b *bench) cycle(ctx context.Context, keep bool, idle func(context.Context) error, form ...string) (Run, error) {
	ctx, cancel := context.WithTimeout(ctx, cycleLimit+2*b.idle)
	defer cancel()
	run, err := b.boot(ctx, form)
	if err != nil {
		return run, err
	}
	if run.Path, err = b.path(ctx); err != nil {
		return run, err
	}
	if idle != nil {
		if err := idle(ctx); err != nil {
			return run, err
		}
	}
	again := b.command(ctx, "up", "--name", b.cluster)
	if again.err != nil {
		return run, again.err
	}
	run.SecondUp = again.elapsed.Seconds()
	if keep {
		return run, nil
	}
	down := b.command(ctx, "down", "--name", b.cluster)
	run.Down = down.elapsed.Seconds()
	return run, down.err
}

// boot runs slipway up, and everything that watches it, side by side.
func (b *bench) boot(ctx context.Context, form []string) (Run, error) {
	var up result
	before, err := busy()
	if err != nil {
		return Run{}, err
	}
	self := ownCPU()
	p := &prober{bench: b, begun: time.Now()}
	m := newMeter(b.place.cgroup)
	metering, stop := context.WithCancel(ctx)
	defer stop()
	go m.run(metering)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		args := append([]string{"up", "--name", b.cluster}, form...)
		if b.spec != "" {
			args = append(args, "-f", b.spec)
		}
		up = b.command(ctx, args...)
		return up.err
	})
	group.Go(func() error { return p.run(ctx) })
	if err := group.Wait(); err != nil {
		return Run{}, err
	}
	stop()
	run := p.seen
	run.Up = up.elapsed.Seconds()
	run.CPU, run.CPUBy = m.until(p.dnsAt)
	run.CPU += up.cpu
	run.CPUBy["slipway up"] = up.cpu
	after, err := busy()
	if err != nil {
		return Run{}, err
	}
	total, _ := m.until(time.Now())
	run.Foreign = max(0, (after-before)-total-up.cpu-(ownCPU()-self)-run.Imported)
	return run, nil
}

// path is the critical path of the boot, from the agent's trace.
func (b *bench) path(ctx context.Context) ([]trace.Segment, error) {
	agent, err := launch.DialAgent(ctx, b.place.agentSocket())
	if err != nil {
		return nil, err
	}
	defer agent.Close()
	spans, err := agent.Trace(ctx)
	if err != nil {
		return nil, err
	}
	if len(spans) == 0 {
		return nil, fmt.Errorf("read trace: it is empty")
	}
	return trace.CriticalPath(spans, ""), nil
}
