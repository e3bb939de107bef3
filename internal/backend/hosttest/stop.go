// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/plan"
)

func termComesFirst(t *testing.T, k kit) {
	u := k.Unit("polite", Behaviour{Ready: plan.ProbeTCP})
	k.converge(u)
	begin := time.Now()
	k.do(plan.Remove, u)
	if took := time.Since(begin); took > u.StopTimeout {
		t.Errorf("a process that ends on SIGTERM took %s", took)
	}
	if diff := cmp.Diff([]string{"terminated"}, k.Signals("polite")); diff != "" {
		t.Error(diff)
	}
	k.want(u, missing())
}

func killFollowsTerm(t *testing.T, k kit) {
	u := k.Unit("stubborn", Behaviour{Ready: plan.ProbeTCP, IgnoreTerm: true})
	u.StopTimeout = 300 * time.Millisecond
	k.converge(u)
	begin := time.Now()
	k.do(plan.Remove, u)
	if took := time.Since(begin); took < u.StopTimeout || took > soon { // without a limit of its own it would get 10 s
		t.Errorf("killed after %s, want %s", took, u.StopTimeout)
	}
	if diff := cmp.Diff([]string{"terminated"}, k.Signals("stubborn")); diff != "" {
		t.Error(diff)
	}
	if n := k.Running("stubborn"); n != 0 {
		t.Errorf("%d processes still run", n)
	}
}

func stopEndsWithContext(t *testing.T, k kit) {
	u := k.Unit("stubborn", Behaviour{Ready: plan.ProbeTCP, IgnoreTerm: true})
	u.StopTimeout = time.Minute
	k.converge(u)
	told := func() { k.eventually("that it is told", func() bool { return len(k.Signals("stubborn")) > 0 }) }
	wantEndsSoonAfter(t, told, func(ctx context.Context) error { return k.tryDo(ctx, plan.Remove, u) })
	if s := k.observe(u); s.Matches && s.Ready {
		t.Errorf("a unit that was told to end is %+v", s)
	}
}

func childrenStay(t *testing.T, k kit) {
	u := k.Unit("parent", Behaviour{Ready: plan.ProbeTCP, Child: true})
	k.converge(u)
	k.eventually("a child", func() bool { return k.Running("parent") == 2 })
	k.do(plan.Remove, u)
	if n := k.Running("parent"); n != 1 {
		t.Errorf("%d processes run after the stop, want the child", n)
	}
}

func childrenAreKilled(t *testing.T, k kit) {
	u := k.Unit("parent", Behaviour{Ready: plan.ProbeTCP, Child: true})
	u.KillChildren = true
	k.converge(u)
	k.eventually("a child", func() bool { return k.Running("parent") == 2 })
	k.Crash("parent")
	k.wantStarts("parent", 2)
	k.await(u)
	k.eventually("one parent with one child", func() bool { return k.Running("parent") == 2 })
	k.do(plan.Remove, u)
	if n := k.Running("parent"); n != 0 {
		t.Errorf("%d processes run after the stop", n)
	}
}
