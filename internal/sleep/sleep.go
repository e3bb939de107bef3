// SPDX-License-Identifier: Apache-2.0

// Package sleep waits for a time to pass or a context to end, whichever is first. It is for pauses between two tries; what can be
// waited for by an event is not waited for by time.
//
//	if err := sleep.For(ctx, again); err != nil {
//		return err // why the context has ended
//	}
package sleep

import (
	"context"
	"time"
)

// For returns nil when the time has passed, and the context's cause when that has ended before.
func For(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
