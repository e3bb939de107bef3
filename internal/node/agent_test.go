// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/reconcile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestApply(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	l := m.boot(t, m.config())
	want := planOf(plan.Dir{Path: "/a"}, etcd())
	if !l.send(t, want, "") {
		t.Error("first plan: got changed false, want true")
	}
	last, _ := l.converged(t)
	if last.GetSteps() != 2 {
		t.Errorf("got %d steps, want 2", last.GetSteps())
	}
	info, err := os.Stat(l.cfg.Socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: got mode %v, error %v, want 0600", info.Mode(), err)
	}

	if l.send(t, want, "") {
		t.Error("same plan again: got changed true, want false")
	}
	if last, _ = l.converged(t); last.GetSteps() != 0 || len(m.Steps()) != 2 {
		t.Errorf("same plan again: got %d steps, want 0", last.GetSteps())
	}
	s, err := l.client.Status(t.Context(), &nodev1.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if s.GetCluster() != "dev" || s.GetNode() != "n1" || s.GetRelease() != "1.36.4" || !s.GetConverged() || len(s.GetItems()) != 2 {
		t.Errorf("got status %v", s)
	}
	if u := s.GetUnits(); len(u) != 1 || u[0].GetPid() != 7 || u[0].GetSinceUnixNano() != 0 {
		t.Errorf("got units %v, want one with an unknown start time", u)
	}
	f, err := l.client.Facts(t.Context(), &nodev1.FactsRequest{})
	if err != nil || string(f.GetFacts()) != `{"address":"192.0.2.1","cgroupV1":true}` || f.GetVersion() != "v1" {
		t.Errorf("got facts %v, error %v", f, err)
	}
	tr, err := l.client.Trace(t.Context(), &nodev1.TraceRequest{})
	if err != nil || len(tr.GetSpans()) < 10 {
		t.Errorf("got trace %s, error %v", tr.GetSpans(), err)
	}
}

// TestNewPlanRemoves: items that the new plan does not contain are removed, and then the earlier plan is dropped.
func TestNewPlanRemoves(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	l := m.boot(t, m.config())
	l.send(t, planOf(plan.Dir{Path: "/a"}, plan.StaticPod{Name: "p", Path: "/p"}, etcd()), "")
	l.converged(t)
	l.send(t, planOf(plan.Dir{Path: "/a"}), "")
	last, _ := l.converged(t)
	if last.GetSteps() != 2 || m.Running("etcd") != 0 {
		t.Errorf("got %d steps, %d processes of etcd, want 2 and 0", last.GetSteps(), m.Running("etcd"))
	}
	if _, _, ok := m.Read("/p"); ok {
		t.Error("the static pod was not removed")
	}
	l.end()
	a, err := New(m.config())
	if err != nil {
		t.Fatal(err)
	}
	if n := len(a.stored.Before.Entries); n != 0 || len(a.stored.Want.Entries) != 1 {
		t.Errorf("got %d entries of the earlier plan, want 0", n)
	}
}

// TestBeforeSurvives: the items of a plan are removed even if several plans and agents follow before the removal succeeds.
func TestBeforeSurvives(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	l := m.boot(t, m.config())
	l.send(t, planOf(plan.Dir{Path: "/one"}, plan.Dir{Path: "/stays"}), "")
	l.converged(t)
	m.FailObserve("dir//one", errors.New("disk error"), -1)
	l.send(t, planOf(plan.Dir{Path: "/two"}, plan.Dir{Path: "/stays"}), "")
	l.end()
	l = m.boot(t, m.config())
	l.send(t, planOf(plan.Dir{Path: "/three"}, plan.Dir{Path: "/stays"}), "")
	l.end()
	m.Write("/two", os.ModeDir, "") // the second plan may have created it
	m.FailObserve("dir//one", nil, 0)

	l = m.boot(t, m.config()) // without an operator: the plan on the disk is sufficient
	l.converged(t)
	for path, want := range map[string]bool{"/one": false, "/two": false, "/three": true, "/stays": true} {
		if _, _, ok := m.Read(path); ok != want {
			t.Errorf("%s exists: got %t, want %t", path, ok, want)
		}
	}
}

// TestDeleteBeforeOfOlderRun: a run that converges after a newer plan was stored does not drop what that plan must remove.
func TestDeleteBeforeOfOlderRun(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	a, err := New(m.config())
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range []plan.Plan{planOf(plan.Dir{Path: "/0"}), planOf(plan.Dir{Path: "/1"}), planOf(plan.Dir{Path: "/2"})} {
		converged := a.current()
		if changed, err := a.store(p, nil); err != nil || !changed {
			t.Fatalf("plan %d: got changed %t, error %v", i, changed, err)
		}
		a.deleteBefore(converged) // too late: its plan is no longer the newest
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
	next.deleteBefore(next.current())
	check(next)
}

// TestStoredBeforeFirstStep: the plan is on the disk before its first step.
func TestStoredBeforeFirstStep(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.config()
	want := planOf(plan.Dir{Path: "/a"})
	seen := make(chan plan.Plan, 10)
	c.AfterStep = func(int, plan.Step) {
		c := m.config()
		c.Socket = ""
		a, err := New(c) // as after a crash at this moment
		if err != nil {
			t.Error(err)
			return
		}
		seen <- a.stored.Want.Plan
	}
	l := m.boot(t, c)
	l.send(t, want, "")
	if diff := cmp.Diff(want, <-seen, cmp.AllowUnexported(plan.Ref{})); diff != "" {
		t.Errorf("on the disk after the first step (-want +got):\n%s", diff)
	}
	l.converged(t)

	if err := os.Rename(m.dir, m.dir+"x"); err != nil { // the plan cannot be stored
		t.Fatal(err)
	}
	steps := len(m.Steps())
	if _, err := l.Apply(t.Context(), planOf(plan.Dir{Path: "/b"}), nil); err == nil || len(m.Steps()) != steps {
		t.Errorf("plan that cannot be stored: got error %v, %d more steps", err, len(m.Steps())-steps)
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
	if _, err := a.store(planOf(etcd(), plan.Unit{Name: "image", Oneshot: true}, plan.Dir{Path: "/a"}, plan.Unit{Name: "api"}), nil); err != nil {
		t.Fatal(err)
	}
	if err := a.Stop(t.Context()); err != nil || !slices.Equal(m.stopped, []string{"api", "etcd"}) {
		t.Errorf("got %v, error %v, want dependents first and no oneshots", m.stopped, err)
	}
}

// TestSamePlanAgain: the same plan again keeps the items, and the node is not converged before the machine was probed.
func TestSamePlanAgain(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	l := m.boot(t, m.config())
	want := planOf(plan.File{Path: "/a", Content: "original", Mode: 0o600}, etcd())
	l.send(t, want, "")
	l.converged(t)
	since := func() map[string]int64 {
		s, err := l.client.Status(t.Context(), &nodev1.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]int64{}
		for _, i := range s.GetItems() {
			out[i.GetRef()] = i.GetSinceUnixNano()
		}
		return out
	}
	first := since()
	for range 3 {
		l.send(t, want, "")
		if last, _ := l.converged(t); last.GetSteps() != 0 {
			t.Errorf("got %d steps, want 0", last.GetSteps())
		}
	}
	if diff := cmp.Diff(first, since()); diff != "" {
		t.Errorf("since (-before +after):\n%s", diff)
	}
	m.Write("/a", 0o600, "modified")
	l.send(t, want, "")
	if last, _ := l.converged(t); last.GetSteps() != 1 {
		t.Errorf("modified file: got %d steps, want 1", last.GetSteps())
	}
	if _, text, _ := m.Read("/a"); text != "original" { // the node is not converged before the probe has ended
		t.Error("converged with a modified file")
	}
}

// TestSamePlanDoesNotInterrupt: the same plan again does not interrupt a step in progress.
func TestSamePlanDoesNotInterrupt(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.config()
	slow := &slowHost{testMachine: m, started: make(chan struct{}, 9), proceed: make(chan struct{})}
	c.Host = slow
	l := m.boot(t, c)
	want := planOf(plan.Dir{Path: "/a"})
	l.send(t, want, "")
	<-slow.started
	l.send(t, want, "")
	close(slow.proceed)
	if last, _ := l.converged(t); last.GetSteps() != 1 || slow.interrupted {
		t.Errorf("got %d steps, interrupted %t, want 1, false", last.GetSteps(), slow.interrupted)
	}
}

type slowHost struct {
	*testMachine
	started, proceed chan struct{}
	interrupted      bool
}

func (s *slowHost) Do(ctx context.Context, step plan.Step, e plan.Entry) error {
	s.started <- struct{}{}
	select {
	case <-s.proceed:
	case <-ctx.Done():
		s.interrupted = true
		return ctx.Err()
	}
	return s.testMachine.Do(ctx, step, e)
}

func TestControlRole(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.config()
	var mu sync.Mutex
	var log []string
	say := func(s string) {
		mu.Lock()
		defer mu.Unlock()
		log = append(log, s)
	}
	done := make(chan struct{}, 10)
	c.Control = func(ctx context.Context, doc []byte, board *reconcile.Board) error {
		say("begin " + string(doc))
		board.Set(reconcile.Status{Ref: "control/dns", Phase: reconcile.Waiting})
		board.Set(reconcile.Status{Ref: ControlRole, Phase: reconcile.Ready})
		select {
		case <-done:
			board.Set(reconcile.Status{Ref: "control/dns", Phase: reconcile.Ready})
			<-ctx.Done()
		case <-ctx.Done():
		}
		say("end " + string(doc))
		return ctx.Err()
	}
	l := m.boot(t, c)
	want := planOf(plan.Dir{Path: "/a"})
	for i, doc := range []string{"one", "one", "two"} {
		l.send(t, want, doc)
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := l.client.Watch(ctx, &nodev1.WatchRequest{})
		if err != nil {
			t.Fatal(err)
		}
		phases := map[string]string{}
		for {
			e, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			phases[e.GetItem().GetRef()] = e.GetItem().GetPhase()
			if i > 0 && doc == "one" && e.GetConverged() {
				break // it continues unchanged
			}
			if phases["dir//a"] == "ready" && phases[ControlRole] == "ready" && phases["control/dns"] == "waiting" && len(done) == 0 {
				done <- struct{}{}
			}
			if !e.GetConverged() {
				continue
			}
			if phases["control/dns"] == "" || phases[ControlRole] != "ready" {
				t.Errorf("%s: converged with phases %v", doc, phases)
			}
			break
		}
		cancel()
	}
	l.end()
	if diff := cmp.Diff([]string{"begin one", "end one", "begin two", "end two"}, log); diff != "" {
		t.Errorf("control role (-want +got):\n%s", diff)
	}
}

func TestControlRoleFails(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.config()
	c.Control = func(context.Context, []byte, *reconcile.Board) error { return errors.New("no such version") }
	l := m.boot(t, c)
	l.send(t, planOf(plan.Dir{Path: "/a"}), "doc")
	stream, err := l.client.Watch(t.Context(), &nodev1.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		e, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if e.GetConverged() {
			t.Fatal("converged although the control role has failed")
		}
		if i := e.GetItem(); i.GetRef() == ControlRole && i.GetPhase() == "failing" {
			if i.GetError() != "no such version" {
				t.Errorf("got error %q", i.GetError())
			}
			return
		}
	}
}
