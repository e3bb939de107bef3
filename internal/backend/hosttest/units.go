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
	"github.com/slipway-project/slipway/internal/testkit"
)

// probes are the kinds of readiness that a process controls itself.
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
		k.t.Errorf("got %d processes, want 1", n)
	}
}

func unitReadyIsReportedQuickly(_ *testing.T, k kit) {
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

func awaitReportsReasons(t *testing.T, k kit) {
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
		t.Errorf("got await error %v, want context.Canceled; reasons %q", err, heard)
	}
	for i := 1; i < len(heard); i++ {
		if heard[i] == heard[i-1] {
			t.Errorf("the reason %q was reported twice in a row", heard[i])
		}
	}
}

func awaitOfAbsentItemFails(t *testing.T, k kit) {
	u := k.Unit("nothing", Behaviour{})
	if err := k.Host.Await(t.Context(), entry(u), func(string) {}); err == nil {
		t.Error("await of a unit that was never started succeeded, want an error")
	}
	f := plan.File{Path: filepath.Join(k.Dir, "nothing"), Mode: 0o600}
	if err := k.Host.Await(t.Context(), entry(f), func(string) {}); err == nil {
		t.Error("await of a file that was never made succeeded, want an error")
	}
}

func awaitEndsWithContext(t *testing.T, k kit) {
	u := k.Unit("slow", Behaviour{Ready: plan.ProbeHTTP, HoldReady: true})
	k.do(plan.Create, u)
	wantEndsSoon(t, func(ctx context.Context) error { return k.Host.Await(ctx, entry(u), func(string) {}) })
	g := k.Precondition("never")
	wantEndsSoon(t, func(ctx context.Context) error { return k.Host.Await(ctx, entry(g), func(string) {}) })
}

// soon is a generous limit for returning after the end of a context, shorter than every other limit of the
// tests.
const soon = 8 * time.Second

// wantEndsSoon cancels f after a short time and checks that it returns.
func wantEndsSoon(t *testing.T, f func(context.Context) error) {
	t.Helper()
	moment := make(chan struct{})
	timer := time.AfterFunc(100*time.Millisecond, func() { close(moment) })
	defer timer.Stop()
	wantEndsSoonAfter(t, func() { <-moment }, f)
}

// wantEndsSoonAfter cancels f once far has returned, and checks that f returns.
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
		t.Errorf("got %v, want context.Canceled", err)
	}
	if took := time.Since(begin); took > soon {
		t.Errorf("returned %s after its context was canceled", took)
	}
}

func changedArgumentsRestartOnce(t *testing.T, k kit) {
	u := k.Unit("args", Behaviour{Ready: plan.ProbeTCP})
	k.converge(u)
	u.Args = append(u.Args[:len(u.Args):len(u.Args)], "more")
	k.want(u, plan.State{Existence: plan.Present, Ready: true})
	k.wantDetail(u, "arguments changed")
	if verb := k.converge(u); verb != plan.Replace {
		t.Errorf("got verb %q, want replace", verb)
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
		t.Errorf("got %+v for a unit that never ran", s)
	}
	k.converge(f)
	k.converge(u)
	f.Content = "2"
	k.converge(f)
	k.wantDetail(u, plan.RefOf(f).String()+" changed")
	if verb := k.converge(u); verb != plan.Replace {
		t.Errorf("got verb %q, want replace", verb)
	}
	k.WriteFile(f.Path, 0o644, f.Content) // same content
	k.converge(f)
	k.converge(u)
	k.wantStarts("input", 2)
}

// A plan that names an existing, unchanged file as a new input causes no restart. A later change of it
// does, and so does a new input that is younger than the process.
func unchangedNewInputNoRestart(t *testing.T, k kit) {
	old := plan.File{Path: filepath.Join(k.Dir, "old"), Mode: 0o600, Content: "1"}
	other := plan.File{Path: filepath.Join(k.Dir, "other"), Mode: 0o600, Content: "1"}
	u := k.Unit("reader", Behaviour{Ready: plan.ProbeTCP})
	k.converge(old)
	written := time.Now()
	testkit.Eventually(k.t, "the file to be older than the process", func() bool { return time.Since(written) > 100*time.Millisecond })
	k.converge(u)
	u.Inputs = []plan.Ref{plan.RefOf(old)}
	if verb := k.converge(u); verb != "" {
		t.Errorf("got verb %q for an input that the process has read, want none", verb)
	}
	k.wantStarts("reader", 1)
	old.Content = "2"
	k.converge(old)
	k.wantDetail(u, plan.RefOf(old).String()+" changed")
	k.converge(u)
	k.converge(u)
	k.wantStarts("reader", 2)
	k.converge(other)
	u.Inputs = append(u.Inputs, plan.RefOf(other))
	k.wantDetail(u, plan.RefOf(other).String()+" changed")
	k.converge(u)
	k.converge(u)
	k.wantStarts("reader", 3)
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
				t.Errorf("%s: got verb %q although nothing has changed", plan.RefOf(it), verb)
			}
		}
	}
	k.wantStarts("calm", 1)
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
