// SPDX-License-Identifier: Apache-2.0

package units

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/sleep"
)

// HungAfter is how long a unit that was ready may go without an answer once it has been called unwell, before it is ended and
// started again: long enough for a component to get over the restart of one that it asks (etcd, the API server), short enough
// that a hung kubelet is back before its node counts as lost and its pods are evicted.
const HungAfter = 30 * time.Second

// DownAfter is how long a process must have been of no use before nobody counts on it any more ([plan.State.Down]).
const DownAfter = time.Minute

// How often a unit is asked whether it is still well.
const (
	HealthPeriod = 10 * time.Second
	UnwellPeriod = time.Second // while it is not
)

// healthFails is how many questions in a row a ready unit may leave unanswered.
const healthFails = 3

// Health watches units that were ready once.
type Health struct {
	Ask            func(ctx context.Context, pr plan.Probe) error
	Period, Unwell time.Duration // between two questions to a unit that is ready, and to one that was
	Hung           time.Duration // how long it may be unwell
}

// Standing is where a unit stands between two questions.
type Standing struct {
	Probe  plan.Probe
	Ready  bool
	Unwell time.Time // since when it is not, if it is not
}

// Patient is a unit that is watched.
type Patient interface {
	Standing() Standing
	SetReady(ready bool, reason string)
	SetReason(reason string)
	EndHung(ctx context.Context) // whoever supervises it starts it again
}

// Watch notices a unit that lives and does not answer. One that does not get over it is ended, and so started again. It ends
// with ctx, which must not outlive the process.
func (h Health) Watch(ctx context.Context, p Patient) {
	fails, period := 0, h.Period
	for sleep.For(ctx, period) == nil {
		s := p.Standing()
		err := h.Ask(ctx, s.Probe)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			if fails, period = 0, h.Period; !s.Ready {
				p.SetReady(true, "")
			}
			continue
		}
		if fails++; fails < healthFails && s.Ready {
			continue
		}
		period = h.Unwell
		if !s.Ready && time.Since(s.Unwell) >= h.Hung {
			p.EndHung(ctx)
			return
		}
		reason := fmt.Sprintf("unwell, restarted after %s of this, waiting for %s: %s", h.Hung, s.Probe, err)
		if s.Ready {
			p.SetReady(false, reason)
			continue
		}
		p.SetReason(reason)
	}
}

const (
	firstDelay = 100 * time.Millisecond
	maxDelay   = 30 * time.Second
)

// SoundAfter is how long a unit must have been well, so that its next death counts as the first.
const SoundAfter = 10 * time.Second

// RestartDelay doubles with each death in a row. The jitter keeps units that die of one cause from coming back as one.
func RestartDelay(crashes int) time.Duration {
	d := maxDelay
	if crashes < 9 {
		d = min(firstDelay<<crashes, maxDelay)
	}
	return d - time.Duration(rand.Int64N(int64(d)/5))
}
