// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
)

func crashIsMended(_ *testing.T, k kit) {
	u := k.Unit("crash", Behaviour{Ready: plan.ProbeTCP})
	k.converge(u)
	k.Crash("crash")
	k.wantStarts("crash", 2)
	k.await(u)
	k.want(u, fine())
}

func crashesDelayRestarts(t *testing.T, k kit) {
	u := k.Unit("crashing", Behaviour{Exit: true, Code: 1, Ready: plan.ProbeTCP})
	k.do(plan.Create, u)
	var at []time.Time
	for n := 1; n <= 7; n++ {
		k.eventually("another start", func() bool { return k.Starts("crashing") >= n })
		at = append(at, time.Now())
	}
	// Of the first two the shorter: a busy machine makes any longer.
	if first, last := min(at[1].Sub(at[0]), at[2].Sub(at[1])), at[6].Sub(at[5]); last < 3*first/2 || last < time.Second {
		t.Errorf("the first restarts came after %s, the sixth after %s: the delay does not grow", first, last)
	}
	k.want(u, waiting())
	k.do(plan.Remove, u)
}

// crashingUnitIsReplacedAtOnce cures several and counts the quickest: a busy machine makes any slow, and no delay.
func crashingUnitIsReplacedAtOnce(t *testing.T, k kit) {
	const delay = 5 * time.Second // of the next restart, at least
	names := []string{"cured-a", "cured-b", "cured-c"}
	for _, name := range names {
		k.do(plan.Create, k.Unit(name, Behaviour{Exit: true, Code: 1, Ready: plan.ProbeTCP}))
	}
	for _, name := range names {
		k.eventually("a long delay", func() bool { return k.Starts(name) >= 7 })
	}
	cure, restart := time.Hour, time.Hour
	for _, name := range names {
		cured := k.Unit(name, Behaviour{Ready: plan.ProbeTCP})
		k.eventually("that nothing is lost by exchanging it", func() bool {
			s := k.observe(cured)
			return s.Down && !s.Ready && !s.Matches
		})
		begin := time.Now()
		k.converge(cured)
		cure = min(cure, time.Since(begin))
		starts := k.Starts(name)
		k.Crash(name)
		begin = time.Now()
		k.eventually("a restart of what was cured", func() bool { return k.Starts(name) > starts })
		restart = min(restart, time.Since(begin))
	}
	if cure > delay {
		t.Errorf("the cure took %s: it waited for the delay of the illness", cure)
	}
	if restart > delay {
		t.Errorf("the first death after the cure delayed the restart by %s: the illness still counts", restart)
	}
}
