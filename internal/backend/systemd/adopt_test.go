// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/backend/hosttest"
	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/testkit"
)

func entry(it plan.Item) plan.Entry { return plan.Entry{Ref: plan.RefOf(it), Item: it} }

// converge applies the plan to one entry like the loop, and returns the verb of the step, or "" if there
// was none.
func converge(t *testing.T, h *Host, it plan.Item) plan.Verb {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := h.Observe(ctx, entry(it))
	if err != nil {
		t.Fatal(err)
	}
	step, ok := plan.Next(entry(it), s)
	if ok {
		if err := h.Do(ctx, step, entry(it)); err != nil {
			t.Fatal(err)
		}
	}
	last := ""
	if err := h.Await(ctx, entry(it), func(reason string) { last = reason }); err != nil {
		t.Fatalf("%v; last reason: %s", err, last)
	}
	return step.Verb
}

func pid(t *testing.T, h *Host, unit string) int {
	t.Helper()
	s, err := h.bus.read(t.Context(), h.units.Get(unit).service)
	if err != nil {
		t.Fatal(err)
	}
	return s.mainPID
}

// A new agent restarts nothing: every unit keeps its process, whatever its kind of readiness.
func TestInsideAdoption(t *testing.T) {
	inside(t)
	b := newBed(t)
	f := plan.File{Path: filepath.Join(b.dir, "input"), Mode: 0o600, Content: "1"}
	var all []plan.Unit
	for _, kind := range []plan.ProbeKind{plan.ProbeNone, plan.ProbeHTTP, plan.ProbeNotify} {
		u := hosttest.RealUnit(b.dir, "adopted"+string(kind), hosttest.Behaviour{Ready: kind})
		u.Inputs = []plan.Ref{plan.RefOf(f)}
		all = append(all, u)
	}
	first := b.host(t)
	converge(t, first, f)
	was := map[string]int{}
	for _, u := range all {
		converge(t, first, u)
		was[u.Name] = pid(t, first, u.Name)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := b.host(t)
	converge(t, second, f)
	for _, u := range all {
		s, err := second.Observe(t.Context(), entry(u))
		if err != nil || !s.Matches || !s.Ready {
			t.Errorf("%s: got state %+v, %v from the next agent", u.Name, s, err)
		}
		if verb := converge(t, second, u); verb != "" {
			t.Errorf("%s: got verb %q although nothing has changed", u.Name, verb)
		}
		if now := pid(t, second, u.Name); now != was[u.Name] {
			t.Errorf("%s: got PID %d, want %d", u.Name, now, was[u.Name])
		}
	}
}

// A unit that exits while no agent runs is restarted by systemd, reads the current inputs, and is not
// restarted again because of them.
func TestInsideDeathWithoutAnAgent(t *testing.T) {
	inside(t)
	b := newBed(t)
	f := plan.File{Path: filepath.Join(b.dir, "input"), Mode: 0o600, Content: "1"}
	u := hosttest.RealUnit(b.dir, "alone", hosttest.Behaviour{Ready: plan.ProbeTCP})
	u.Inputs = []plan.Ref{plan.RefOf(f)}
	h := b.host(t)
	converge(t, h, f)
	converge(t, h, u)
	service := h.units.Get(u.Name).service
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	f.Content = "2"
	if err := os.WriteFile(f.Path, []byte(f.Content), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range processes(service) {
		if err := syscall.Kill(p, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "a second start", func() bool { return hosttest.RealStarts(b.dir, u.Name) == 2 })
	next := b.host(t)
	converge(t, next, f)
	if verb := converge(t, next, u); verb != "" {
		t.Errorf("got verb %q although the process has read the current inputs", verb)
	}
	if n := hosttest.RealStarts(b.dir, u.Name); n != 2 {
		t.Errorf("got %d starts, want 2", n)
	}
}

// A unit is not started over lost data, even if systemd restarts it, and the reason is reported.
func TestInsideDataGuard(t *testing.T) {
	inside(t)
	b := newBed(t)
	u, data := hosttest.Guarded(t, b.dir, "etcd")
	h := b.host(t)
	converge(t, h, u)
	if err := os.Rename(data, data+".away"); err != nil {
		t.Fatal(err)
	}
	crash(t, h, u.Name)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	testkit.Eventually(t, "the unit to be down", func() bool { s, _ := h.Observe(ctx, entry(u)); return !s.Ready })
	_ = h.Await(ctx, entry(u), func(reason string) {
		if strings.Contains(reason, "lost data") {
			cancel()
		}
	})
	if ctx.Err() == nil {
		t.Fatal("the unit became ready without its data")
	}
	if n := hosttest.RealStarts(b.dir, u.Name); n != 1 {
		t.Errorf("got %d starts, want 1", n)
	}
	if err := os.Rename(data+".away", data); err != nil {
		t.Fatal(err)
	}
	converge(t, h, u)
	if n := hosttest.RealStarts(b.dir, u.Name); n != 2 {
		t.Errorf("got %d starts after the data was restored, want 2", n)
	}
}

// A running unit that stays unhealthy is restarted, and the reason is reported.
func TestInsideHungUnitIsRestarted(t *testing.T) {
	inside(t)
	b := newBed(t)
	b.conf.health = units.Health{Period: 20 * time.Millisecond, UnhealthyPeriod: 20 * time.Millisecond, HungAfter: 200 * time.Millisecond}
	ready := filepath.Join(b.dir, "ready")
	u := plan.Unit{
		Name: "hung", Args: []string{"/bin/sh", "-c", "echo x > " + ready + "; exec sleep 1000"},
		Ready: plan.Probe{Kind: plan.ProbeFile, Path: ready},
	}
	events := make(chan units.Event, 100)
	b.conf.OnEvent = func(e units.Event) { events <- e }
	h := b.host(t)
	converge(t, h, u)
	before := pid(t, h, u.Name)
	if err := os.Remove(ready); err != nil {
		t.Fatal(err)
	}
	var kinds []units.EventKind
	for len(kinds) == 0 || kinds[len(kinds)-1] != units.Exited {
		select {
		case e := <-events:
			kinds = append(kinds, e.Kind)
			if e.Kind == units.Exited && !strings.Contains(e.Detail, "unhealthy for 200ms") {
				t.Errorf("got reason %q", e.Detail)
			}
		case <-time.After(time.Minute):
			t.Fatalf("the hung unit was not restarted; got events %v", kinds)
		}
	}
	converge(t, h, u)
	if now := pid(t, h, u.Name); now == before || now == 0 {
		t.Errorf("got PID %d, want another than %d", now, before)
	}
}

// First starts need no reload, and many simultaneous changes need few.
func TestInsideReloadsAreFew(t *testing.T) {
	inside(t)
	b := newBed(t)
	h := b.host(t)
	reloads := 0
	h.bus.onReload = func() { reloads++ }
	u := hosttest.RealUnit(b.dir, "first", hosttest.Behaviour{Ready: plan.ProbeTCP})
	converge(t, h, u)
	if reloads != 0 {
		t.Errorf("got %d reloads for a first start, want 0", reloads)
	}
	u.StopTimeout = time.Minute
	converge(t, h, u)
	converge(t, h, u)
	if reloads != 1 {
		t.Errorf("got %d reloads for one change", reloads)
	}
}

// A unit that a user stops by hand is reported.
func TestInsideStopByHandIsReported(t *testing.T) {
	inside(t)
	b := newBed(t)
	events := make(chan units.Event, 100)
	b.conf.OnEvent = func(e units.Event) { events <- e }
	h := b.host(t)
	u := hosttest.RealUnit(b.dir, "byhand", hosttest.Behaviour{Ready: plan.ProbeTCP})
	converge(t, h, u)
	done := make(chan string, 1)
	if _, err := h.bus.now().StopUnitContext(t.Context(), h.units.Get(u.Name).service, replace, done); err != nil {
		t.Fatal(err)
	}
	<-done
	for {
		select {
		case e := <-events:
			if e.Kind != units.Exited {
				continue
			}
			if !strings.Contains(e.Detail, "by someone other than the agent") {
				t.Errorf("got detail %q", e.Detail)
			}
			if verb := converge(t, h, u); verb != plan.Create {
				t.Errorf("got verb %q, want create", verb)
			}
			return
		case <-time.After(time.Minute):
			t.Fatal("no event was reported")
		}
	}
}
