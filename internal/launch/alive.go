// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/reconcile"
)

var errMachineDown = errors.New("the machine went down while slipway worked on it")

const (
	boots      = 3                // a machine that goes down so often will not stay up at the next one
	agentLimit = 30 * time.Second // an agent answers in milliseconds, or does not come up at all
	agentGrace = 10 * time.Second // however short the time to wait: without its plan nothing goes on by itself
)

// handOverLimit bounds the hand-over of the plan.
func (u *up) handOverLimit() time.Duration {
	if u.o.Wait == 0 {
		return agentLimit
	}
	return min(max(u.o.Wait, agentGrace), agentLimit)
}

// limit ends ctx when the time to wait is over.
func (u *up) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if u.deadline.IsZero() {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, u.deadline)
}

// late makes of whatever failed because the time was over what it means for the user.
func (u *up) late(ctx context.Context, err error) error {
	var known *Error
	if ctx.Err() != nil || errors.As(err, &known) || u.deadline.IsZero() || time.Now().Before(u.deadline) {
		return err
	}
	return &Error{TimedOut, fmt.Errorf("cluster %s is not ready after %s; it goes on by itself: see slipway status --name %s",
		u.cluster.Name, u.o.Wait, u.cluster.Name)}
}

// whileRunning does work that ends when the machine does, with errMachineDown.
func whileRunning(ctx context.Context, at place, work func(ctx context.Context) error) error {
	working, stop := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	down := false // not the cause of working: that may be another machine's end
	watching.Go(func() {
		if at.AwaitEnd(working) == nil {
			down = true
			stop(errMachineDown)
		}
	})
	err := work(working)
	stop(nil) // the first cause stays
	watching.Wait()
	if err != nil && down {
		return errMachineDown
	}
	return err
}

// silent says what to do about an agent that has not answered in time.
func (u *up) silent(limited context.Context, node string, begun time.Time, err error) error {
	if !errors.Is(limited.Err(), context.DeadlineExceeded) {
		return err
	}
	took := time.Since(begun).Round(time.Second)
	u.result.Unready = []reconcile.Status{{
		Ref: "machine/" + node, Phase: reconcile.Waiting, For: wait.For{Since: begun, What: "its agent"}, Error: fmt.Sprintf("the agent has not answered for %s", took),
	}}
	return &Error{TimedOut, fmt.Errorf("the agent of %s has not answered for %s: see slipway logs --name %s agent --machine %s: %w", node, took, u.cluster.Name, node, err)}
}
