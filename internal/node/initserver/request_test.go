// SPDX-License-Identifier: Apache-2.0

package initserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/initclient"
	"github.com/slipway-project/slipway/internal/node/lock"
)

// TestFailureLeavesAFreeMachine: a failed request is wiped, reports why it failed, and does not block the next request.
func TestFailureLeavesAFreeMachine(t *testing.T) {
	t.Parallel()
	block := func(name string) func(*testMachine) error { // a directory at this path makes the write fail
		return func(m *testMachine) error { return os.MkdirAll(filepath.Join(m.dir, name+".prev.tmp", "x"), 0o700) }
	}
	tests := map[string]struct {
		fail map[string]error
		do   func(*testMachine) error // when the cluster is ready
		want string
	}{
		"install":     {map[string]error{"install": errBroken}, nil, "install: broken on purpose"},
		"established": {map[string]error{"established": errBroken}, nil, "broken on purpose"},
		"answer":      {nil, block("request"), "write init request"},
		"commit":      {nil, block("lock"), "commit this machine"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.tune = func(c *Config, m *testMachine) {
				m.fail = tt.fail
				if tt.do != nil { // the retries end at the deadline
					c.Deadline = 3 * time.Second
				}
				c.Pause = func(int) time.Duration { // the disk is repaired
					if m.count("wipe") == 0 {
						return time.Millisecond
					}
					if err := errors.Join(os.RemoveAll(filepath.Join(m.dir, "lock.prev.tmp")), os.RemoveAll(filepath.Join(m.dir, "request.prev.tmp"))); err != nil {
						t.Error(err)
					}
					return time.Millisecond
				}
			}
			once := tt.do
			a := r.start(r.agent.dir, func(step string) {
				if step == "installed" && once != nil {
					if err := once(&testMachine{dir: r.agent.dir}); err != nil {
						t.Error(err)
					}
					once = nil
				}
			})
			c := r.client()
			if _, err := c.Init(t.Context(), idA, ticket("n1")); err != nil {
				t.Fatal(err)
			}
			_, err := c.Watch(t.Context(), idA, nil)
			var failed *initclient.FailedError
			if !errors.As(err, &failed) || !strings.Contains(failed.Why, tt.want) {
				t.Fatalf("got %v", err)
			}
			if _, err := os.Stat(a.machine.node()); !errors.Is(err, os.ErrNotExist) || a.cfg.Lock.State().Phase != lock.Free {
				t.Errorf("got node file %v, lock %s, want neither", err, a.cfg.Lock.State())
			}
			if phase, err := c.Init(t.Context(), idA, ticket("n1")); err != nil || phase != "failed" {
				t.Errorf("same request again: got %q, %v", phase, err)
			}
			a.machine.repair()
			if err := os.RemoveAll(filepath.Join(a.dir, "request.prev.tmp")); err != nil { // the disk is repaired
				t.Error(err)
			}
			if _, err := c.Init(t.Context(), idB, ticket("n2")); err != nil {
				t.Fatal(err)
			}
			result, err := c.Watch(t.Context(), idB, nil)
			if diff := cmp.Diff(wantResult("n2"), result); err != nil || diff != "" {
				t.Error(err, diff)
			}
		})
	}
}

// A disk that is full when the cluster is ready, and has room again, takes nothing away.
func TestFullDiskAtTheEnd(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"request", "lock"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			full := filepath.Join(r.agent.dir, name+".prev.tmp") // a directory at this path makes the write fail
			var tries atomic.Int32
			r.tune = func(c *Config, _ *testMachine) {
				c.Pause = func(try int) time.Duration {
					if tries.Store(int32(try)); try == 3 {
						if err := os.RemoveAll(full); err != nil {
							t.Error(err)
						}
					}
					return time.Millisecond
				}
			}
			a := r.start(r.agent.dir, func(step string) {
				if step == "installed" {
					if err := os.MkdirAll(filepath.Join(full, "x"), 0o700); err != nil {
						t.Error(err)
					}
				}
			})
			c := r.client()
			if _, err := c.Init(t.Context(), idA, ticket("n1")); err != nil {
				t.Fatal(err)
			}
			result, err := c.Watch(t.Context(), idA, nil)
			if diff := cmp.Diff(wantResult("n1"), result); err != nil || diff != "" || tries.Load() != 3 {
				t.Errorf("after %d tries: %v %s", tries.Load(), err, diff)
			}
			if a.cfg.Lock.State().Phase != lock.Committed || a.machine.count("wipe") != 0 {
				t.Errorf("got lock %s, %d wipes", a.cfg.Lock.State(), a.machine.count("wipe"))
			}
		})
	}
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.tune = func(c *Config, m *testMachine) { c.Deadline, m.hold = 20*time.Millisecond, make(chan struct{}) }
	a, c := r.begin(), r.client()
	if _, err := c.Init(t.Context(), idA, ticket("n1")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Watch(t.Context(), idA, nil); err == nil || !strings.Contains(err.Error(), "was not ready within 20ms") {
		t.Errorf("got error %v", err)
	}
	if a.cfg.Lock.State().Phase != lock.Free || a.machine.count("wipe") != 1 {
		t.Errorf("got lock %s, %d wipes", a.cfg.Lock.State(), a.machine.count("wipe"))
	}
}

// TestWipeFails: the wipe is retried until it succeeds. Meanwhile the machine refuses other requests, even if the claim is in doubt.
func TestWipeFails(t *testing.T) {
	t.Parallel()
	for name, doubts := range map[string]int{"claimed": 0, "claim in doubt": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			tries, repaired := make(chan int), make(chan struct{})
			r.tune = func(c *Config, m *testMachine) {
				m.fail = map[string]error{"install": errBroken, "wipe": errBroken}
				c.Lock = &doubtful{Lock: open(t, r.agent.dir), claims: doubts, lost: true}
				c.Pause = func(try int) time.Duration {
					select {
					case tries <- try:
					case <-repaired:
					}
					return time.Millisecond
				}
			}
			a, c := r.begin(), r.client()
			if _, err := c.Init(t.Context(), idA, ticket("n1")); err != nil {
				t.Fatal(err)
			}
			for want := range 3 {
				if try := <-tries; try != want {
					t.Errorf("got try %d, want %d", try, want)
				}
				if _, err := c.Init(t.Context(), idB, ticket("n2")); status.Code(err) != codes.FailedPrecondition {
					t.Errorf("got error %v", err)
				}
			}
			a.machine.repair()
			close(repaired)
			if _, err := c.Watch(t.Context(), idA, nil); err == nil || a.cfg.Lock.State().Phase != lock.Free {
				t.Errorf("got error %v, lock %s", err, a.cfg.Lock.State())
			}
		})
	}
}

// TestLostRequest: a claim without a readable request is undone. A request of a newer version is left as it is.
func TestLostRequest(t *testing.T) {
	t.Parallel()
	keep := func(id string) func(string) error {
		return func(p string) error { return durable.Save(p, recordSchema, record{ID: id, Starts: 1}) }
	}
	tests := map[string]struct {
		prepare func(path string) error
		want    string // part of New's error; empty: the claim is undone
	}{
		"missing":            {func(string) error { return nil }, ""},
		"damaged":            {func(p string) error { return os.WriteFile(p, []byte("x"), 0o600) }, ""},
		"of another request": {keep(idB), ""},
		"ticket unreadable":  {keep(idA), ""},
		"newer":              {func(p string) error { return durable.Save(p, recordSchema+1, record{ID: idA}) }, "another schema"},
		"too many starts":    {func(p string) error { return durable.Save(p, recordSchema, record{ID: idA, Starts: maxStarts}) }, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			dir := r.agent.dir
			m := &testMachine{dir: dir}
			cfg := r.config(dir, m)
			err := errors.Join(cfg.Lock.Claim(lock.Init, idA), tt.prepare(cfg.RequestFile), os.WriteFile(m.node(), []byte("half"), 0o600))
			if err != nil {
				t.Fatal(err)
			}
			s, err := New(cfg)
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got error %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Resume(t.Context()); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(m.node()); !errors.Is(err, os.ErrNotExist) || cfg.Lock.State().Phase != lock.Free {
				t.Errorf("got error %v, lock %s", err, cfg.Lock.State())
			}
			if n := m.count("install"); n != 0 {
				t.Errorf("got %d installs", n)
			}
			if err := s.Resume(t.Context()); err != nil || m.count("wipe") != 1 {
				t.Errorf("resume again: got %v, %d wipes", err, m.count("wipe"))
			}
			r.start(dir, nil)
			var failed *initclient.FailedError
			if _, err := r.client().Watch(t.Context(), idA, nil); !errors.As(err, &failed) {
				t.Errorf("got error %v", err)
			}
		})
	}
}

// TestResumeLeavesOthersAlone: Resume does nothing on free and committed machines and for the claim of a join.
func TestResumeLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(journal) error{
		"free":                func(journal) error { return nil },
		"claimed by a join":   func(l journal) error { return l.Claim(lock.Join, idA) },
		"committed by a join": func(l journal) error { return errors.Join(l.Claim(lock.Join, idA), l.Commit(idA, "c", "n")) },
		"committed by init":   func(l journal) error { return errors.Join(l.Claim(lock.Init, idA), l.Commit(idA, "c", "n")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			m := &testMachine{dir: r.agent.dir}
			cfg := r.config(m.dir, m)
			err := errors.Join(prepare(cfg.Lock), durable.Save(cfg.RequestFile, recordSchema, record{ID: idA, Why: "it failed"}))
			if err != nil {
				t.Fatal(err)
			}
			before := cfg.Lock.State()
			s, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Resume(t.Context()); err != nil || len(m.calls) != 0 || cfg.Lock.State() != before {
				t.Errorf("%v, %v, %s", err, m.calls, cfg.Lock.State())
			}
		})
	}
}

// TestStopIsNoFailure: stopping the agent during a request undoes nothing.
func TestStopIsNoFailure(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.tune = func(_ *Config, m *testMachine) { m.hold = make(chan struct{}) }
	a, c := r.begin(), r.client()
	if _, err := c.Init(t.Context(), idA, ticket("n1")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := c.Watch(ctx, idA, func(e initclient.Event) {
		if e.Phase == "installed" {
			cancel()
		}
	}); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v", err)
	}
	if err := a.end(); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v", err)
	}
	if s := open(t, a.dir).State(); s.Phase != lock.Claimed || a.machine.count("wipe") != 0 {
		t.Errorf("got lock %s, %d wipes", s, a.machine.count("wipe"))
	}
}

// doubtful is a journal whose first claims or commits are in doubt.
type doubtful struct {
	*lock.Lock
	claims, commits int
	lost            bool // the claim in doubt was not written
}

func (d *doubtful) Claim(by lock.By, id string) error {
	if d.claims--; d.claims >= 0 && d.lost {
		return lock.ErrInDoubt
	} else if d.claims >= 0 {
		return errors.Join(d.Lock.Claim(by, id), lock.ErrInDoubt)
	}
	return d.Lock.Claim(by, id)
}

func (d *doubtful) Commit(id, cluster, node string) error {
	if d.commits--; d.commits >= 0 {
		return lock.ErrInDoubt
	}
	return d.Lock.Commit(id, cluster, node)
}

// TestDoubt: a commit in doubt is retried and the machine is not wiped. A claim in doubt is released.
func TestDoubt(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		claims, commits int
		want            lock.Phase
		wipes           int
	}{
		"claim":  {1, 0, lock.Free, 1},
		"commit": {0, 3, lock.Committed, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.tune = func(c *Config, _ *testMachine) {
				c.Lock = &doubtful{open(t, r.agent.dir), tt.claims, tt.commits, false}
			}
			a, c := r.begin(), r.client()
			if _, err := c.Init(t.Context(), idA, ticket("n1")); err != nil {
				t.Fatal(err)
			}
			_, err := c.Watch(t.Context(), idA, nil)
			if ok := tt.want == lock.Committed; ok != (err == nil) {
				t.Errorf("got error %v", err)
			}
			if s := open(t, a.dir).State(); s.Phase != tt.want || a.machine.count("wipe") != tt.wipes {
				t.Errorf("got lock %s, %d wipes", s, a.machine.count("wipe"))
			}
			if err == nil {
				return
			}
			if _, err := c.Init(t.Context(), idB, ticket("n2")); err != nil {
				t.Errorf("next request: got %v", err)
			}
			if _, err := c.Watch(t.Context(), idB, nil); err != nil {
				t.Errorf("next request: got %v", err)
			}
		})
	}
}

// TestFailedIsNotRestarted: the next agent does not restart a failed request, because the machine may be partly wiped.
func TestFailedIsNotRestarted(t *testing.T) {
	t.Parallel()
	fail := map[string]error{"established": errBroken}
	wipe := slices.Index(walk(t, fail, nil), "wipe")
	r := newRig(t)
	r.tune = func(_ *Config, m *testMachine) { m.fail, fail = fail, nil } // the first agent only
	c := &crashes{rig: r, after: []int{wipe}}
	_, next, err := c.run(t)
	var failed *initclient.FailedError
	if !errors.As(err, &failed) || failed.Why != errBroken.Error() {
		t.Errorf("got error %v", err)
	}
	if n := next.machine.count("install"); n != 0 || next.machine.count("wipe") != 1 || open(t, next.dir).State().Phase != lock.Free {
		t.Errorf("installed %d times, wiped %d times, %s", n, next.machine.count("wipe"), open(t, next.dir).State())
	}
}

// crashes contains, for each agent in turn, the number of steps after which it dies.
type crashes struct {
	rig   *rig
	after []int

	mu    sync.Mutex // guards steps
	steps []string   // of the agent that was not killed

	wait sync.WaitGroup
}

// start starts an agent that dies, as in a power cut, after its number of steps. The next agent gets a copy of the disk of that moment,
// so what the dead agent still writes has no effect.
func (c *crashes) start(dir string) {
	kill := -1
	if len(c.after) > 0 {
		kill, c.after = c.after[0], c.after[1:]
	}
	n := 0
	var self *agent
	ready := make(chan struct{})
	self = c.rig.start(dir, func(step string) {
		<-ready
		if kill < 0 {
			c.mu.Lock()
			c.steps = append(c.steps, step)
			c.mu.Unlock()
		}
		if n++; n-1 != kill {
			return
		}
		self.cut(true)
		left := copyDir(c.rig.t, dir)
		self.cancel()
		c.wait.Go(func() {
			self.done <- <-self.done
			c.start(left)
		})
	})
	close(ready)
}

// run sends a request, waits for all crashes, and returns the client's result and the last agent.
func (c *crashes) run(t *testing.T) (initclient.Result, *agent, error) {
	t.Helper()
	c.start(c.rig.agent.dir)
	client := c.rig.client()
	_, err := client.Init(t.Context(), idA, ticket("n1"))
	if err != nil {
		t.Errorf("init: %v", err)
		return initclient.Result{}, c.rig.current(), err
	}
	result, err := client.Watch(t.Context(), idA, nil)
	c.wait.Wait()
	return result, c.rig.current(), err
}

// TestCrashBetweenEveryTwoSteps: the agent dies once or twice, after every number of steps. The result is the same as without a
// crash, for a request that succeeds and for one that fails.
func TestCrashBetweenEveryTwoSteps(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]map[string]error{"succeeds": nil, "fails": {"established": errBroken}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			count := len(walk(t, fail, nil))
			if count < 7 {
				t.Fatalf("got %d steps, want at least 7", count)
			}
			for first := range count {
				t.Run(fmt.Sprint(first), func(t *testing.T) {
					t.Parallel()
					rest := walk(t, fail, []int{first})
					for second := range rest {
						walk(t, fail, []int{first, second})
					}
				})
			}
		})
	}
}

// walk runs a request with crashes, checks its result, and returns the steps of the last agent.
func walk(t *testing.T, fail map[string]error, after []int) []string {
	t.Helper()
	r := newRig(t)
	r.tune = func(_ *Config, m *testMachine) { m.fail = fail }
	c := &crashes{rig: r, after: after}
	result, last, err := c.run(t)
	defer r.stop()
	where := fmt.Sprintf("crashes %v", after)
	state := open(t, last.dir).State()
	_, node := os.Stat(last.machine.node())
	if fail == nil {
		want := lock.State{Phase: lock.Committed, By: lock.Init, ID: idA, Cluster: "c-n1", Node: "n1", Since: state.Since}
		if diff := cmp.Diff(wantResult("n1"), result); err != nil || diff != "" {
			t.Errorf("%s: %v %s", where, err, diff)
		}
		if diff := cmp.Diff(want, state); diff != "" || node != nil {
			t.Errorf("%s: %s %v", where, diff, node)
		}
	} else {
		var failed *initclient.FailedError
		if !errors.As(err, &failed) || failed.Why != errBroken.Error() {
			t.Errorf("%s: %v", where, err)
		}
		if state.Phase != lock.Free || !errors.Is(node, os.ErrNotExist) {
			t.Errorf("%s: %s, %v", where, state, node)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.steps
}

func open(t *testing.T, dir string) *lock.Lock {
	t.Helper()
	l, err := lock.Open(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	return l
}
