// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/backend/fake"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/reconcile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// machine is a host in memory whose agents come and go.
type machine struct {
	*fake.Host
	dir string

	mu      sync.Mutex // guards the field below
	stopped []string
	reset   []string
}

func (m *machine) Units() []UnitStatus { return []UnitStatus{{Name: "etcd", PID: 7, Ready: true}} }

func (m *machine) StopAll(_ context.Context, order []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopped = order
	return nil
}

func (m *machine) Reset(_ context.Context, p plan.Plan, files []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reset = append(m.reset, files...)
	for i := len(p.Entries) - 1; i >= 0; i-- {
		e := p.Entries[i]
		if err := m.Do(context.Background(), plan.Step{Verb: plan.Remove, Ref: e.Ref}, e); err != nil {
			return err
		}
	}
	return nil
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "agent") //nolint:usetesting // a socket's path has a limit
	if err != nil {
		t.Fatal(err)
	}
	h := fake.New()
	t.Cleanup(func() {
		h.Close()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return &machine{Host: h, dir: dir}
}

func (m *machine) config() Config {
	return Config{
		Host: m, Facts: Facts{Address: "192.0.2.1", CgroupV1: true}, PlanFile: filepath.Join(m.dir, "plan.json"), TraceFile: filepath.Join(m.dir, "trace.json"),
		Socket: filepath.Join(m.dir, "s"), Version: "v1", Log: slog.New(slog.DiscardHandler),
	}
}

// life is one agent's life on a machine.
type life struct {
	*Agent
	client nodev1.NodeClient
	end    func() // as a SIGTERM does; a second call does nothing
}

func (m *machine) boot(t *testing.T, c Config) life {
	t.Helper()
	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	conn, err := grpc.NewClient("unix:"+c.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(func() {
		cancel()
		begun := time.Now()
		if err := <-ended; err != nil || time.Since(begun) > time.Second {
			t.Errorf("the agent ended after %s: %v", time.Since(begun), err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return life{a, nodev1.NewNodeClient(conn), end}
}

func (l life) send(t *testing.T, p plan.Plan, control string) (changed bool) {
	t.Helper()
	wire, err := plan.Encode(p)
	if err != nil {
		t.Fatal(err)
	}
	r, err := l.client.Apply(t.Context(), &nodev1.ApplyRequest{Plan: wire, Control: []byte(control)}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	return r.GetChanged()
}

// converged watches until the agent says so, and returns all that it said.
func (l life) converged(t *testing.T) (last *nodev1.Event, all []*nodev1.Event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stream, err := l.client.Watch(ctx, &nodev1.WatchRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	for {
		e, err := stream.Recv()
		if err != nil {
			status, _ := l.board.All()
			t.Fatalf("watch: %v; the board: %v", err, status)
		}
		all = append(all, e)
		if e.GetConverged() {
			return e, all
		}
	}
}

func planOf(items ...plan.Item) plan.Plan {
	var b plan.Builder
	for _, it := range items {
		b.Add(it)
	}
	return b.Plan("dev", "n1", "1.36.4")
}

func etcd() plan.Unit { return plan.Unit{Name: "etcd", Args: []string{"/bin/etcd"}} }

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
	if err != nil || f.GetAddress() != "192.0.2.1" || !f.GetCgroupV1() || f.GetVersion() != "v1" {
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
				break // it went on as it was
			}
			if phases["dir//a"] == "ready" && phases[ControlRole] == "ready" && phases["control/dns"] == "waiting" && len(done) == 0 {
				done <- struct{}{}
			}
			if !e.GetConverged() {
				continue
			}
			if phases["control/dns"] == "" || phases[ControlRole] != "ready" {
				t.Errorf("%s: converged, and the control role has said %v", doc, phases)
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

// The same plan again breaks off nothing, forgets nothing, and has not converged before the machine has been looked at.
func TestSamePlanAgain(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	l := m.boot(t, m.config())
	want := planOf(plan.File{Path: "/a", Content: "sound", Mode: 0o600}, etcd())
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
			t.Errorf("%d steps", last.GetSteps())
		}
	}
	if diff := cmp.Diff(first, since()); diff != "" {
		t.Errorf("since (-before +after):\n%s", diff)
	}
	m.Write("/a", 0o600, "spoilt")
	l.send(t, want, "")
	if last, _ := l.converged(t); last.GetSteps() != 1 {
		t.Errorf("a file was spoilt, and %d steps were taken", last.GetSteps())
	}
	if _, text, _ := m.Read("/a"); text != "sound" { // until the look is over, nothing counts as converged
		t.Error("converged, and it still is")
	}
}

// A step under way goes on when the same plan comes again.
func TestSamePlanDoesNotBreakOff(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.config()
	slow := &slowHost{machine: m, begun: make(chan struct{}, 9), goOn: make(chan struct{})}
	c.Host = slow
	l := m.boot(t, c)
	want := planOf(plan.Dir{Path: "/a"})
	l.send(t, want, "")
	<-slow.begun
	l.send(t, want, "")
	close(slow.goOn)
	if last, _ := l.converged(t); last.GetSteps() != 1 || slow.broken {
		t.Errorf("%d steps, broken off: %t", last.GetSteps(), slow.broken)
	}
}

type slowHost struct {
	*machine
	begun, goOn chan struct{}
	broken      bool
}

func (s *slowHost) Do(ctx context.Context, step plan.Step, e plan.Entry) error {
	s.begun <- struct{}{}
	select {
	case <-s.goOn:
	case <-ctx.Done():
		s.broken = true
		return ctx.Err()
	}
	return s.machine.Do(ctx, step, e)
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
			t.Fatal("converged without a control role")
		}
		if i := e.GetItem(); i.GetRef() == ControlRole && i.GetPhase() == "failing" {
			if i.GetError() != "no such version" {
				t.Errorf("it says %q", i.GetError())
			}
			return
		}
	}
}
