// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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

func oneshotRunsOnce(t *testing.T, k kit) {
	for _, kind := range []plan.ProbeKind{plan.ProbeNone, plan.ProbeFile} {
		name := "job" + string(kind)
		f := plan.File{Path: filepath.Join(k.Dir, name+".input"), Mode: 0o600, Content: "1"}
		u := k.Unit(name, Behaviour{Oneshot: true, Ready: kind, Exit: true})
		u.Inputs = []plan.Ref{plan.RefOf(f)}
		k.converge(f)
		k.want(u, missing())
		k.do(plan.Create, u)
		k.want(u, fine())
		if verb := k.converge(u); verb != "" {
			t.Errorf("%s: %q although it has run", name, verb)
		}
		k.wantStarts(name, 1)
		f.Content = "2"
		k.converge(f)
		k.wantDetail(u, plan.RefOf(f).String()+" changed")
		k.converge(u)
		k.wantStarts(name, 2)
	}
}

func oneshotTellsWhyItFailed(t *testing.T, k kit) {
	u := k.Unit("job", Behaviour{Oneshot: true, Exit: true, Code: 7, Say: "no disk"})
	err := k.tryDo(t.Context(), plan.Create, u)
	if err == nil || !strings.Contains(err.Error(), "exited with 7") || !strings.Contains(err.Error(), "no disk") {
		t.Errorf("error %v, want the code and the last words", err)
	}
	k.want(u, missing())
}

func oneshotEndsWithContext(t *testing.T, k kit) {
	u := k.Unit("job", Behaviour{Oneshot: true, IgnoreTerm: true})
	u.StopTimeout = time.Minute // nobody waits for it
	wantEndsSoon(t, func(ctx context.Context) error { return k.tryDo(ctx, plan.Create, u) })
	if n := k.Running("job"); n != 0 {
		t.Errorf("%d processes still run", n)
	}
	k.want(u, missing())
}

// limitsHoldFromTheNextStart: an edit restarts nothing, and what cannot be reached keeps no unit from its start.
func limitsHoldFromTheNextStart(t *testing.T, k kit) {
	if k.Limit == nil {
		t.Skip("this host has no processes")
	}
	u := k.Unit("limited", Behaviour{Ready: plan.ProbeTCP})
	k.Limit("LimitNOFILE=777", "LimitNPROC=infinity")
	k.converge(u)
	first := k.openFiles("limited")
	k.Limit("LimitNOFILE=555")
	k.converge(u)
	k.wantStarts("limited", 1)
	still := k.openFiles("limited")
	k.Crash("limited")
	k.wantStarts("limited", 2)
	k.await(u)
	if diff := cmp.Diff([]string{"777 777", "777 777", "555 555"}, []string{first, still, k.openFiles("limited")}); diff != "" {
		t.Errorf("open files, soft and hard: %s", diff)
	}
	k.Limit("LimitNOFILE=99999999999") // more than any kernel allows
	k.converge(u)
	k.Crash("limited")
	k.wantStarts("limited", 3)
	k.await(u)
}

// openFiles are the soft and the hard limit of the unit's open files, as the kernel has them.
func (k kit) openFiles(unit string) string {
	k.t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", k.Main(unit)))
	if err != nil {
		k.t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(data), "Max open files")
	words := strings.Fields(line)
	if len(words) < 2 {
		k.t.Fatalf("limits: %s", data)
	}
	return words[0] + " " + words[1]
}
