// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"

	"github.com/slipway-project/slipway/internal/core/plan"
)

// Host is a live machine as the loop sees it. Methods are called from many goroutines at once, for different entries; for
// one entry never two at a time. All are idempotent: after a crash the loop simply calls them again.
type Host interface {
	// Observe tells the entry's state now, without changing anything. An error means that nobody knows (State is Unknown).
	Observe(ctx context.Context, e plan.Entry) (plan.State, error)

	// Do carries out one step and returns when it is done: a file is durable, a process has been started (not: is ready),
	// a oneshot has run to its end. For Remove, e is the entry of the earlier plan.
	Do(ctx context.Context, s plan.Step, e plan.Entry) error

	// Await blocks until the entry is ready or ctx ends, and calls waiting each time the reason for waiting changes. It
	// returns an error only when waiting has become pointless: what was started is gone, or ctx has ended.
	Await(ctx context.Context, e plan.Entry, waiting func(reason string)) error
}
