// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/core/plan"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestApply(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	l := m.boot(t, m.config())
	want := planOf(plan.Dir{Path: "/a"}, etcd())
	if !l.send(t, want, "") {
		t.Error("a first plan is no change")
	}
	last, _ := l.converged(t)
	if last.GetSteps() != 2 {
		t.Errorf("%d steps, want 2", last.GetSteps())
	}
	info, err := os.Stat(l.cfg.Socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, %v", info.Mode(), err)
	}

	if l.send(t, want, "") {
		t.Error("the same plan again is a change")
	}
	if last, _ = l.converged(t); last.GetSteps() != 0 || len(m.Steps()) != 2 {
		t.Errorf("the same plan again led to %d steps", last.GetSteps())
	}
	s, err := l.client.Status(t.Context(), &nodev1.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if s.GetCluster() != "dev" || s.GetNode() != "n1" || s.GetRelease() != "1.36.4" || !s.GetConverged() || len(s.GetItems()) != 2 {
		t.Errorf("status: %v", s)
	}
	if u := s.GetUnits(); len(u) != 1 || u[0].GetPid() != 7 || u[0].GetSinceUnixNano() != 0 {
		t.Errorf("units: %v, want one since nobody knows when", u)
	}
	f, err := l.client.Facts(t.Context(), &nodev1.FactsRequest{})
	if err != nil || string(f.GetFacts()) != `{"address":"192.0.2.1","cgroupV1":true}` || f.GetVersion() != "v1" {
		t.Errorf("facts: %v, %v", f, err)
	}
	tr, err := l.client.Trace(t.Context(), &nodev1.TraceRequest{})
	if err != nil || len(tr.GetSpans()) < 10 {
		t.Errorf("trace: %s, %v", tr.GetSpans(), err)
	}
}

// A plan that drops something removes it and converges; after that nobody remembers it.
func TestNewPlanRemoves(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	l := m.boot(t, m.config())
	l.send(t, planOf(plan.Dir{Path: "/a"}, plan.StaticPod{Name: "p", Path: "/p"}, etcd()), "")
	l.converged(t)
	l.send(t, planOf(plan.Dir{Path: "/a"}), "")
	last, _ := l.converged(t)
	if last.GetSteps() != 2 || m.Running("etcd") != 0 {
		t.Errorf("%d steps, etcd has %d processes", last.GetSteps(), m.Running("etcd"))
	}
	if _, _, ok := m.Read("/p"); ok {
		t.Error("the static pod is still there")
	}
	l.end()
	a, err := New(m.config())
	if err != nil {
		t.Fatal(err)
	}
	if n := len(a.kept.Before.Entries); n != 0 || len(a.kept.Want.Entries) != 1 {
		t.Errorf("%d entries of an earlier plan are remembered", n)
	}
}

// What a plan has made is removed, however many plans and agents come before somebody gets to it.
func TestBeforeSurvives(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	l := m.boot(t, m.config())
	l.send(t, planOf(plan.Dir{Path: "/one"}, plan.Dir{Path: "/stays"}), "")
	l.converged(t)
	m.FailObserve("dir//one", errors.New("disk is asleep"), -1)
	l.send(t, planOf(plan.Dir{Path: "/two"}, plan.Dir{Path: "/stays"}), "")
	l.end()
	l = m.boot(t, m.config())
	l.send(t, planOf(plan.Dir{Path: "/three"}, plan.Dir{Path: "/stays"}), "")
	l.end()
	m.Write("/two", os.ModeDir, "") // the second plan may have come to that
	m.FailObserve("dir//one", nil, 0)

	l = m.boot(t, m.config()) // no operator: the plan on the disk is enough
	l.converged(t)
	for path, want := range map[string]bool{"/one": false, "/two": false, "/three": true, "/stays": true} {
		if _, _, ok := m.Read(path); ok != want {
			t.Errorf("%s is there: %t, want %t", path, ok, want)
		}
	}
}

// A plan that comes while the last one is being finished is not robbed of what it has to remove.
func TestForgetLeavesWhatCameMeanwhile(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	a, err := New(m.config())
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range []plan.Plan{planOf(plan.Dir{Path: "/0"}), planOf(plan.Dir{Path: "/1"}), planOf(plan.Dir{Path: "/2"})} {
		converged := a.current()
		if changed, err := a.remember(p, nil); err != nil || !changed {
			t.Fatalf("%d: %t, %v", i, changed, err)
		}
		a.forget(converged) // too late: its plan is not the newest any more
	}
	check := func(a *Agent, want ...string) {
		t.Helper()
		var got []string
		for _, e := range a.current().Before.Entries {
			got = append(got, e.Ref.String())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("before (-want +got):\n%s", diff)
		}
	}
	check(a, "dir//0", "dir//1")
	next, err := New(m.config())
	if err != nil {
		t.Fatal(err)
	}
	check(next, "dir//0", "dir//1")
	next.forget(next.current())
	check(next)
}

// Nothing of a plan happens before the plan is on the disk.
func TestKeepIsDurableFirst(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.config()
	want := planOf(plan.Dir{Path: "/a"})
	seen := make(chan plan.Plan, 10)
	c.AfterStep = func(int, plan.Step) {
		c := m.config()
		c.Socket = ""
		a, err := New(c) // as after a crash at this very moment
		if err != nil {
			t.Error(err)
			return
		}
		seen <- a.kept.Want.Plan
	}
	l := m.boot(t, c)
	l.send(t, want, "")
	if diff := cmp.Diff(want, <-seen, cmp.AllowUnexported(plan.Ref{})); diff != "" {
		t.Errorf("on the disk after the first step (-want +got):\n%s", diff)
	}
	l.converged(t)

	if err := os.Rename(m.dir, m.dir+"x"); err != nil { // there is nowhere to keep a plan
		t.Fatal(err)
	}
	steps := len(m.Steps())
	if _, err := l.Keep(t.Context(), planOf(plan.Dir{Path: "/b"}), nil); err == nil || len(m.Steps()) != steps {
		t.Errorf("a plan that cannot be kept: %v, %d more steps", err, len(m.Steps())-steps)
	}
	if err := os.Rename(m.dir+"x", m.dir); err != nil {
		t.Fatal(err)
	}
}

func TestEndsAtOnce(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for range 20 {
		m.boot(t, m.config()).end()
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	a, err := New(m.config())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.remember(planOf(etcd(), plan.Unit{Name: "image", Oneshot: true}, plan.Dir{Path: "/a"}, plan.Unit{Name: "api"}), nil); err != nil {
		t.Fatal(err)
	}
	if err := a.Stop(t.Context()); err != nil || !slices.Equal(m.stopped, []string{"api", "etcd"}) {
		t.Errorf("stopped %v, %v: want dependents first, and no oneshots", m.stopped, err)
	}
}
