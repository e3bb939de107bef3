// SPDX-License-Identifier: Apache-2.0

// Package sleep waits for a time to pass or for a context to end, whichever comes first. Use it for delays
// between retries; if there is an event to wait for, wait for that instead.
//
//	if err := sleep.For(ctx, delay); err != nil {
//		return err // the cause of the context's end
//	}
package sleep

import (
	"context"
	"time"
)

// For returns nil after d has passed, and the context's cause if ctx ends first.
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
