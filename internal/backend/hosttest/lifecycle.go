// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/testkit"
)

func crashedUnitIsRestarted(_ *testing.T, k kit) {
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
		testkit.Eventually(k.t, "another start", func() bool { return k.Starts("crashing") >= n })
		at = append(at, time.Now())
	}
	// Use the shorter of the first two: on a busy machine either may be longer.
	if first, last := min(at[1].Sub(at[0]), at[2].Sub(at[1])), at[6].Sub(at[5]); last < 3*first/2 || last < time.Second {
		t.Errorf("first restart after %s, sixth after %s: the delay does not grow", first, last)
	}
	k.want(u, waiting())
	k.do(plan.Remove, u)
}

// A crashing unit is replaced without waiting for its restart delay. The test fixes several units and
// checks the fastest, because on a busy machine any one may be slow.
func crashingUnitIsReplacedAtOnce(t *testing.T, k kit) {
	const delay = 5 * time.Second // at least, until the next restart
	names := []string{"fixed-a", "fixed-b", "fixed-c"}
	for _, name := range names {
		k.do(plan.Create, k.Unit(name, Behaviour{Exit: true, Code: 1, Ready: plan.ProbeTCP}))
	}
	for _, name := range names {
		testkit.Eventually(k.t, "a long restart delay", func() bool { return k.Starts(name) >= 7 })
	}
	replace, restart := time.Hour, time.Hour
	for _, name := range names {
		fixed := k.Unit(name, Behaviour{Ready: plan.ProbeTCP})
		testkit.Eventually(k.t, "the unit to be down", func() bool {
			s := k.observe(fixed)
			return s.Down && !s.Ready && !s.Matches
		})
		begin := time.Now()
		k.converge(fixed)
		replace = min(replace, time.Since(begin))
		starts := k.Starts(name)
		k.Crash(name)
		begin = time.Now()
		testkit.Eventually(k.t, "a restart of the fixed unit", func() bool { return k.Starts(name) > starts })
		restart = min(restart, time.Since(begin))
	}
	if replace > delay {
		t.Errorf("replacing the unit took %s: it waited for the restart delay", replace)
	}
	if restart > delay {
		t.Errorf("the first restart after the fix took %s: earlier crashes still count", restart)
	}
}

func termComesFirst(t *testing.T, k kit) {
	u := k.Unit("polite", Behaviour{Ready: plan.ProbeTCP})
	k.converge(u)
	begin := time.Now()
	k.do(plan.Remove, u)
	if took := time.Since(begin); took > u.StopTimeout {
		t.Errorf("a process that exits on SIGTERM took %s", took)
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
	if took := time.Since(begin); took < u.StopTimeout || took > soon { // the default is 10 s
		t.Errorf("killed after %s, want about %s", took, u.StopTimeout)
	}
	if diff := cmp.Diff([]string{"terminated"}, k.Signals("stubborn")); diff != "" {
		t.Error(diff)
	}
	if n := k.Running("stubborn"); n != 0 {
		t.Errorf("got %d processes, want 0", n)
	}
}

func stopEndsWithContext(t *testing.T, k kit) {
	u := k.Unit("stubborn", Behaviour{Ready: plan.ProbeTCP, IgnoreTerm: true})
	u.StopTimeout = time.Minute
	k.converge(u)
	told := func() { testkit.Eventually(k.t, "a signal", func() bool { return len(k.Signals("stubborn")) > 0 }) }
	wantEndsSoonAfter(t, told, func(ctx context.Context) error { return k.tryDo(ctx, plan.Remove, u) })
	if s := k.observe(u); s.Matches && s.Ready {
		t.Errorf("got %+v for a stopping unit", s)
	}
}

func childrenStay(t *testing.T, k kit) {
	u := k.Unit("parent", Behaviour{Ready: plan.ProbeTCP, Child: true})
	k.converge(u)
	testkit.Eventually(k.t, "a child", func() bool { return k.Running("parent") == 2 })
	k.do(plan.Remove, u)
	if n := k.Running("parent"); n != 1 {
		t.Errorf("got %d processes after the stop, want 1, the child", n)
	}
}

func childrenAreKilled(t *testing.T, k kit) {
	u := k.Unit("parent", Behaviour{Ready: plan.ProbeTCP, Child: true})
	u.KillChildren = true
	k.converge(u)
	testkit.Eventually(k.t, "a child", func() bool { return k.Running("parent") == 2 })
	k.Crash("parent")
	k.wantStarts("parent", 2)
	k.await(u)
	testkit.Eventually(k.t, "one parent with one child", func() bool { return k.Running("parent") == 2 })
	k.do(plan.Remove, u)
	if n := k.Running("parent"); n != 0 {
		t.Errorf("got %d processes after the stop, want 0", n)
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
			t.Errorf("%s: got verb %q although it has run", name, verb)
		}
		k.wantStarts(name, 1)
		f.Content = "2"
		k.converge(f)
		k.wantDetail(u, plan.RefOf(f).String()+" changed")
		k.converge(u)
		k.wantStarts(name, 2)
	}
}

func oneshotReportsFailure(t *testing.T, k kit) {
	u := k.Unit("job", Behaviour{Oneshot: true, Exit: true, Code: 7, Say: "no disk"})
	err := k.tryDo(t.Context(), plan.Create, u)
	if err == nil || !strings.Contains(err.Error(), "exited with 7") || !strings.Contains(err.Error(), "no disk") {
		t.Errorf("got error %v, want the exit code and the last output", err)
	}
	k.want(u, missing())
}

func oneshotEndsWithContext(t *testing.T, k kit) {
	u := k.Unit("job", Behaviour{Oneshot: true, IgnoreTerm: true})
	u.StopTimeout = time.Minute // longer than the test waits
	wantEndsSoon(t, func(ctx context.Context) error { return k.tryDo(ctx, plan.Create, u) })
	if n := k.Running("job"); n != 0 {
		t.Errorf("got %d processes, want 0", n)
	}
	k.want(u, missing())
}

// Changed limits restart nothing, and limits that cannot be set do not prevent a start.
func limitsApplyAtNextStart(t *testing.T, k kit) {
	if k.Limit == nil {
		t.Skip("this host has no real processes")
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
		t.Errorf("open files, soft and hard limit (-want +got):\n%s", diff)
	}
	k.Limit("LimitNOFILE=99999999999") // more than any kernel allows
	k.converge(u)
	k.Crash("limited")
	k.wantStarts("limited", 3)
	k.await(u)
}

// openFiles returns the soft and the hard limit of the main process's open files.
func (k kit) openFiles(unit string) string {
	k.t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", k.MainPID(unit)))
	if err != nil {
		k.t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(data), "Max open files")
	words := strings.Fields(line)
	if len(words) < 2 {
		k.t.Fatalf("no limit of open files in:\n%s", data)
	}
	return words[0] + " " + words[1]
}

// The data guard of a unit survives the loss of its record: after a crash the unit is not started over lost data,
// neither before the plan has said again how to run it nor afterwards.
func guardSurvivesLostRecord(t *testing.T, k kit) {
	if k.Restart == nil {
		t.Skip("this host keeps no records")
	}
	for name, lose := range map[string]func(path string) error{
		"damaged":     func(p string) error { return errors.Join(os.Truncate(p, 20), os.Truncate(p+".prev", 20)) },
		"gone":        func(p string) error { return errors.Join(os.Remove(p), os.Remove(p+".prev")) },
		"newest gone": os.Remove,
	} {
		u, data := Guarded(t, k.Dir, "etcd-"+strings.ReplaceAll(name, " ", "-"))
		k.converge(u)
		pid := k.MainPID(u.Name)
		k.Host = k.Restart(func() {
			if err := lose(k.Record(u.Name)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		})
		k.observe(u)
		if err := os.Rename(data, data+".away"); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil { // still the same process
			t.Fatalf("%s: the new host has restarted the unit: %v", name, err)
		}
		testkit.Eventually(k.t, "the end of the process", func() bool { return k.Running(u.Name) == 0 })
		step, ok := plan.Next(entry(u), k.observe(u))
		if ok {
			k.do(step.Verb, u)
		}
		testkit.Eventually(k.t, "a refusal because of lost data", func() bool { return strings.Contains(k.observe(u).Detail, "lost data") })
		if n := k.Starts(u.Name); n != 1 {
			t.Errorf("%s: got %d starts without the data, want 1", name, n)
		}
		if err := os.Rename(data+".away", data); err != nil {
			t.Fatal(err)
		}
		k.await(u)
		k.want(u, fine())
		if n := k.Starts(u.Name); n != 2 {
			t.Errorf("%s: got %d starts after the data was restored, want 2", name, n)
		}
	}
}
