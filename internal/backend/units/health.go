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

// HungAfter is how long a unit may stay unhealthy before it is restarted. It is long enough for a
// component to survive the restart of one it depends on (etcd, the API server), and short enough that a
// hung kubelet is restarted before its pods are evicted.
const HungAfter = 30 * time.Second

// DownAfter is how long a process must have been unready until it counts as down ([plan.State.Down]).
const DownAfter = time.Minute

// The intervals of health checks.
const (
	HealthPeriod    = 10 * time.Second
	UnhealthyPeriod = time.Second // while the unit is unhealthy
)

// healthFails is the number of failed checks in a row that make a ready unit unhealthy.
const healthFails = 3

// Health checks the health of units after they became ready.
type Health struct {
	Prober                  Prober
	Period, UnhealthyPeriod time.Duration // between checks of a healthy and of an unhealthy unit
	HungAfter               time.Duration // how long a unit may be unhealthy before it is restarted
}

// HealthStatus is the state of a unit between two checks.
type HealthStatus struct {
	Probe          plan.Probe
	Ready          bool
	UnhealthySince time.Time // zero if it is healthy
}

// HealthTarget is one process of a unit whose health is checked.
type HealthTarget interface {
	HealthStatus() HealthStatus
	SetReady(ready bool, reason string)
	SetReason(reason string)
	EndHung(ctx context.Context) // ends the process; its supervisor restarts it
}

// Watch checks the health of a running process until ctx ends, which must be no later than the end of the
// process. A process that stays unhealthy for HungAfter is ended, so that it is restarted.
func (h Health) Watch(ctx context.Context, p HealthTarget) {
	fails, period := 0, h.Period
	for sleep.For(ctx, period) == nil {
		s := p.HealthStatus()
		err := h.Prober.Ask(ctx, s.Probe)
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
		period = h.UnhealthyPeriod
		if !s.Ready && time.Since(s.UnhealthySince) >= h.HungAfter {
			p.EndHung(ctx)
			return
		}
		reason := fmt.Sprintf("unhealthy, will be restarted unless it recovers within %s; waiting for %s: %s", h.HungAfter, s.Probe, err)
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

// StableAfter is how long a unit must have been ready until its next exit counts as the first in a row.
const StableAfter = 10 * time.Second

// RestartDelay returns the delay before a restart. It doubles with each crash in a row, up to 30 s. The
// jitter keeps units that crashed for the same reason from restarting at the same moment.
func RestartDelay(crashes int) time.Duration {
	d := maxDelay
	if crashes < 9 {
		d = min(firstDelay<<crashes, maxDelay)
	}
	return d - time.Duration(rand.Int64N(int64(d)/5))
}
