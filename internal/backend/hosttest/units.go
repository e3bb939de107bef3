// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
)

// probes are the ways to be ready that a process decides itself.
func probes() []plan.ProbeKind {
	return []plan.ProbeKind{plan.ProbeHTTP, plan.ProbeTCP, plan.ProbeNotify, plan.ProbeFile}
}

func unitStartsOnce(_ *testing.T, k kit) {
	u := k.Unit("once", Behaviour{})
	k.want(u, missing())
	k.do(plan.Create, u)
	k.do(plan.Create, u)
	k.await(u)
	k.want(u, fine())
	k.do(plan.Create, u)
	k.wantStarts("once", 1)
	if n := k.Running("once"); n != 1 {
		k.t.Errorf("%d processes run", n)
	}
}

func unitReadyIsSeenAtOnce(_ *testing.T, k kit) {
	for _, kind := range probes() {
		name := "by-" + string(kind)
		u := k.Unit(name, Behaviour{Ready: kind, HoldReady: true})
		k.do(plan.Create, u)
		k.want(u, waiting())
		k.wantStarts(name, 1)
		k.readyOnOpen(u, name)
		k.want(u, fine())
	}
}

func awaitTellsReasons(t *testing.T, k kit) {
	u := k.Unit("failing", Behaviour{Ready: plan.ProbeTCP, Exit: true, Code: 3, Say: "cannot find my hat"})
	k.do(plan.Create, u)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var heard []string
	err := k.Host.Await(ctx, entry(u), func(reason string) {
		heard = append(heard, reason)
		if strings.Contains(reason, "exited with 3") && strings.Contains(reason, "cannot find my hat") {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("await: %v, want context.Canceled, for the unit is started again without limit; heard %q", err, heard)
	}
	for i := 1; i < len(heard); i++ {
		if heard[i] == heard[i-1] {
			t.Errorf("the reason %q was told twice in a row", heard[i])
		}
	}
}

func awaitOfNothingIsPointless(t *testing.T, k kit) {
	u := k.Unit("nothing", Behaviour{})
	if err := k.Host.Await(t.Context(), entry(u), func(string) {}); err == nil {
		t.Error("await of a unit that was never started ended well")
	}
	f := plan.File{Path: filepath.Join(k.Dir, "nothing"), Mode: 0o600}
	if err := k.Host.Await(t.Context(), entry(f), func(string) {}); err == nil {
		t.Error("await of a file that was never made ended well")
	}
}

func awaitEndsWithContext(t *testing.T, k kit) {
	u := k.Unit("slow", Behaviour{Ready: plan.ProbeHTTP, HoldReady: true})
	k.do(plan.Create, u)
	wantEndsSoon(t, func(ctx context.Context) error { return k.Host.Await(ctx, entry(u), func(string) {}) })
	g := k.Gate("never")
	wantEndsSoon(t, func(ctx context.Context) error { return k.Host.Await(ctx, entry(g), func(string) {}) })
}

// soon is more than anybody takes who has noticed that the context has ended, however busy the machine; who has not waits longer.
const soon = 8 * time.Second

// wantEndsSoon cancels f wherever it is after a moment.
func wantEndsSoon(t *testing.T, f func(context.Context) error) {
	t.Helper()
	moment := make(chan struct{})
	timer := time.AfterFunc(100*time.Millisecond, func() { close(moment) })
	defer timer.Stop()
	wantEndsSoonAfter(t, func() { <-moment }, f)
}

// wantEndsSoonAfter cancels f when it has come so far.
func wantEndsSoonAfter(t *testing.T, far func(), f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	far()
	cancel()
	begin := time.Now()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v, want context.Canceled", err)
	}
	if took := time.Since(begin); took > soon {
		t.Errorf("ended %s after its context", took)
	}
}

func changedArgumentsRestartOnce(t *testing.T, k kit) {
	u := k.Unit("args", Behaviour{Ready: plan.ProbeTCP})
	k.converge(u)
	u.Args = append(u.Args[:len(u.Args):len(u.Args)], "more")
	k.want(u, plan.State{Existence: plan.Present, Ready: true})
	k.wantDetail(u, "arguments changed")
	if verb := k.converge(u); verb != plan.Replace {
		t.Errorf("the step was %q", verb)
	}
	k.converge(u)
	k.wantStarts("args", 2)
	u.Env = append(u.Env[:len(u.Env):len(u.Env)], "MORE=1")
	k.wantDetail(u, "environment changed")
	k.converge(u)
	k.wantStarts("args", 3)
}

func changedInputRestartsOnce(t *testing.T, k kit) {
	f := plan.File{Path: filepath.Join(k.Dir, "input"), Mode: 0o600, Content: "1"}
	u := k.Unit("input", Behaviour{Ready: plan.ProbeTCP})
	u.Inputs = []plan.Ref{plan.RefOf(f)}
	if s, err := k.Host.Observe(t.Context(), entry(u)); err == nil && s.Existence == plan.Present {
		t.Errorf("a unit that never ran is %+v", s)
	}
	k.converge(f)
	k.converge(u)
	f.Content = "2"
	k.converge(f)
	k.wantDetail(u, plan.RefOf(f).String()+" changed")
	if verb := k.converge(u); verb != plan.Replace {
		t.Errorf("the step was %q", verb)
	}
	k.Spoil(f.Path, 0o644, f.Content) // what the process reads is the same
	k.converge(f)
	k.converge(u)
	k.wantStarts("input", 2)
}

func changedProbeRestartsNothing(_ *testing.T, k kit) {
	u := k.Unit("probe", Behaviour{Ready: plan.ProbeTCP})
	k.converge(u)
	u.StopTimeout, u.KillChildren = time.Minute, true
	k.converge(u)
	k.wantStarts("probe", 1)
}

func secondPassChangesNothing(t *testing.T, k kit) {
	f := plan.File{Path: filepath.Join(k.Dir, "f"), Mode: 0o600, Content: "1"}
	u := k.Unit("calm", Behaviour{Ready: plan.ProbeHTTP})
	u.Inputs = []plan.Ref{plan.RefOf(f)}
	items := []plan.Item{plan.Dir{Path: filepath.Join(k.Dir, "d"), Mode: 0o711}, f, u}
	for _, it := range items {
		k.converge(it)
	}
	for range 3 {
		for _, it := range items {
			if verb := k.converge(it); verb != "" {
				t.Errorf("%s: %q although nothing has changed", plan.RefOf(it), verb)
			}
		}
	}
	k.wantStarts("calm", 1)
}

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
	for n := 1; n <= 5; n++ {
		k.eventually("another start", func() bool { return k.Starts("crashing") >= n })
		at = append(at, time.Now())
	}
	// Of the first two the shorter: a busy machine makes any longer.
	if first, last := min(at[1].Sub(at[0]), at[2].Sub(at[1])), at[4].Sub(at[3]); last < 3*first/2 || last < 500*time.Millisecond {
		t.Errorf("the first restarts came after %s, the fourth after %s: the delay does not grow", first, last)
	}
	k.want(u, waiting())
	k.do(plan.Remove, u)
}

func crashingUnitIsReplacedAtOnce(t *testing.T, k kit) {
	bad := k.Unit("cured", Behaviour{Exit: true, Code: 1, Ready: plan.ProbeTCP})
	k.do(plan.Create, bad)
	k.eventually("a long delay", func() bool { return k.Starts("cured") >= 7 })
	const delay = 5 * time.Second // of the next restart, at least: what a busy machine needs to exchange it is less
	cured := k.Unit("cured", Behaviour{Ready: plan.ProbeTCP})
	k.eventually("that nothing is lost by exchanging it", func() bool {
		s := k.observe(cured)
		return s.Down && !s.Ready && !s.Matches
	})
	begin := time.Now()
	k.converge(cured)
	if took := time.Since(begin); took > delay {
		t.Errorf("the cure took %s: it waited for the delay of the illness", took)
	}
	starts := k.Starts("cured")
	k.Crash("cured")
	begin = time.Now()
	k.eventually("a restart of what was cured", func() bool { return k.Starts("cured") > starts })
	if took := time.Since(begin); took > delay {
		t.Errorf("the first death after the cure delayed the restart by %s: the illness still counts", took)
	}
}

func removedUnitIsAbsent(_ *testing.T, k kit) {
	u := k.Unit("gone", Behaviour{Ready: plan.ProbeTCP})
	k.do(plan.Remove, u)
	k.converge(u)
	k.do(plan.Remove, u)
	k.want(u, missing())
	k.do(plan.Remove, u)
	k.converge(u)
	k.wantStarts("gone", 2)
}

func manyEntriesAtOnce(t *testing.T, k kit) {
	var items []plan.Item
	for i := range 6 {
		items = append(items,
			plan.File{Path: filepath.Join(k.Dir, "many", fmt.Sprint(i)), Mode: 0o600, Content: fmt.Sprint(i)},
			k.Unit(fmt.Sprintf("many-%d", i), Behaviour{Ready: plan.ProbeTCP}))
	}
	errs := make([]error, len(items))
	var all sync.WaitGroup
	for i, it := range items {
		all.Go(func() {
			err := k.tryDo(t.Context(), plan.Create, it)
			errs[i] = errors.Join(err, k.Host.Await(t.Context(), entry(it), func(string) {}))
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, it := range items {
		k.want(it, fine())
	}
}
