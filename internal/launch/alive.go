// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/artifact"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/machine"
)

var errMachineDown = errors.New("the machine went down while slipway worked on it")

const (
	boots      = 3                // a machine that goes down so often will not stay up at the next one
	agentLimit = 30 * time.Second // an agent answers in milliseconds, or does not come up at all
)

// node makes a machine run and brings it to its plan. A machine that goes down meanwhile is started again: nobody else would,
// and its agent would be waited for without end.
func (u *up) node(ctx context.Context, machines *machine.Local, n config.NodeName, bundle artifact.Bundle) error {
	for boot := 1; ; boot++ {
		err := u.machine(ctx, machines, n)
		if err == nil {
			err = whileRunning(ctx, machines, u.cluster.Name, n.Name, func(ctx context.Context) error { return u.plan(ctx, machines, n, bundle) })
		}
		if !errors.Is(err, errMachineDown) {
			return err
		}
		if boot == boots {
			return fmt.Errorf("machine %s: %w, %d times: see slipway logs --name %s machine", n.Name, err, boots, u.cluster.Name)
		}
		u.report(Event{Stage: StageMachine, Machine: n.Name, Phase: "starting", Text: "it went down, starting it again"})
	}
}

// whileRunning does work that ends when the machine does, with errMachineDown.
func whileRunning(ctx context.Context, machines *machine.Local, cluster, name string, work func(ctx context.Context) error) error {
	working, stop := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		if machines.AwaitEnd(working, cluster, name) == nil {
			stop(errMachineDown)
		}
	})
	err := work(working)
	stop(nil) // the first cause stays
	watching.Wait()
	if err != nil && errors.Is(context.Cause(working), errMachineDown) {
		return errMachineDown
	}
	return err
}

// silent says what to do about an agent that has not answered in time.
func (u *up) silent(ctx, limited context.Context, node string, err error) error {
	if ctx.Err() != nil || !errors.Is(limited.Err(), context.DeadlineExceeded) {
		return err
	}
	return &Error{TimedOut, fmt.Errorf("the agent of %s has not answered for %s: see slipway logs --name %s agent: %w", node, agentLimit, u.cluster.Name, err)}
}
