// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/sleep"
)

// The pace of asking: quick while a start is likely to end soon, calm when it has been long in coming.
const (
	firstPause = 20 * time.Millisecond
	pauseStep  = 2 * time.Millisecond
	busyPause  = 50 * time.Millisecond
	calmPause  = 250 * time.Millisecond
	calmAfter  = 30 * time.Second
)

// Await asks until the answer is yes, and calls waiting each time the reason changes. It returns an error only when ctx ends.
func (p *Prober) Await(ctx context.Context, pr plan.Probe, waiting func(reason string)) error {
	return Until(ctx, func(ctx context.Context) error {
		asked := time.Now()
		err := p.Ask(ctx, pr)
		if err != nil && (pr.Kind == plan.ProbeExec || pr.Kind == plan.ProbeTask) {
			_ = sleep.For(ctx, min(2*time.Since(asked), time.Second)) // a command costs CPU time that what is being waited for needs
		}
		return err
	}, waiting)
}

// Until calls ask, at 20 to 50 ms intervals in the beginning, until it returns nil or ctx ends.
func Until(ctx context.Context, ask func(context.Context) error, waiting func(reason string)) error {
	begin, pause, last := time.Now(), firstPause, ""
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		err := ask(ctx)
		if err == nil {
			return nil
		}
		if reason := err.Error(); reason != last && ctx.Err() == nil {
			last = reason
			waiting(reason)
		}
		timer.Reset(pause)
		if pause = min(pause+pauseStep, busyPause); time.Since(begin) > calmAfter {
			pause = calmPause
		}
	}
}
