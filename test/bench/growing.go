// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/launch"
	"github.com/slipway-project/slipway/internal/machine"
)

// workersJoin is how many workers join one after the other in each round.
const workersJoin = 2

// growing makes the smallest cluster that has workers, lets more of them in, and then gives it three control planes.
func (b *bench) growing(ctx context.Context, s *Several) error {
	if err := b.up(ctx, 1, 1).err; err != nil {
		return err
	}
	a, err := b.through(b.main(0))
	if err != nil {
		return err
	}
	for i := range workersJoin {
		if err := b.timed("worker joins", &s.Worker, func() (float64, error) { return b.join(ctx, a, i) }); err != nil {
			return err
		}
	}
	if err := b.timed("control planes 1 to 3", &s.Grow, func() (float64, error) {
		up := b.up(ctx, 3, 1)
		return up.elapsed.Seconds(), up.err
	}); err != nil || s.Live != nil {
		return err
	}
	return b.live(ctx, s)
}

// join boots a machine that is told at once which cluster to join, and returns the seconds from the start of its agent to its
// node's being Ready.
func (b *bench) join(ctx context.Context, a api, i int) (float64, error) {
	name := fmt.Sprintf("%s-extra-%d", b.cluster, i)
	token, err := b.launcher.CreateToken(ctx, b.cluster, launch.TokenOptions{Pool: "worker", Node: name, TTL: 5 * time.Minute})
	if err != nil {
		return 0, err
	}
	var ready time.Time
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		err := a.readyNodes(ctx, 0, name)
		ready = time.Now()
		return err
	})
	group.Go(func() error { return b.bootFree(ctx, name, i) })
	group.Go(func() error { return b.tell(ctx, name, token) })
	if err := group.Wait(); err != nil {
		return 0, err
	}
	began, err := b.agentBegan(name)
	return ready.Sub(began).Seconds(), err
}

// bootFree boots one machine that belongs to nobody.
func (b *bench) bootFree(ctx context.Context, name string, i int) error {
	const beyond = 40 // the addresses of the spec's machines
	machines, err := b.launcher.Machines(b.runc)
	if err != nil {
		return err
	}
	unlock, err := machines.Lock(ctx, b.cluster, func(string) {})
	if err != nil {
		return err
	}
	defer unlock()
	_, err = machines.Ensure(ctx, machine.Spec{Cluster: b.cluster, Name: name, Index: beyond + i, Binary: b.launcher.Exe})
	return err
}

// tell has the machine join as soon as its agent listens.
func (b *bench) tell(ctx context.Context, name string, t launch.NewToken) error {
	socket := filepath.Join(b.place.local.RunDir(b.cluster, name), "agent.sock")
	var last error
	err := poll(ctx, 2*time.Millisecond, func() bool {
		_, last = launch.Join(ctx, launch.JoinOptions{Socket: socket, Endpoints: t.Endpoints, Pin: t.Pin, Token: t.Token, Node: name})
		return last == nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

// agentBegan is when the machine's PID 1 started the agent, as its console says.
func (b *bench) agentBegan(name string) (time.Time, error) {
	text, err := os.ReadFile(b.place.local.Console(b.cluster, name))
	if err != nil {
		return time.Time{}, err
	}
	for line := range strings.Lines(string(text)) { // time=2026-11-20T07:00:00.123Z level=INFO msg="agent started" pid=13
		stamp, said, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
		if strings.Contains(said, `msg="agent started"`) {
			return time.Parse(time.RFC3339Nano, stamp)
		}
	}
	return time.Time{}, fmt.Errorf("console of %s: it does not say when the agent was started", name)
}
