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
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/initclient"
	"github.com/slipway-project/slipway/internal/node/lock"
)

// crashes are the numbers of steps after which an agent dies: the first agent after the first number, and so on.
type crashes struct {
	rig   *rig
	after []int

	mu    sync.Mutex // guards steps
	steps []string   // of the agent that was not killed

	wait sync.WaitGroup
}

// start begins an agent that dies, as by a power cut, at its next number: what is on the disk at that moment is all that the next
// agent finds, whatever the dead one does afterwards.
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

// run makes a request through all crashes and gives what the client gets, and the last agent.
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

// Wherever the agent dies, once or twice, the end is the same: for a request that succeeds, and for one that fails.
func TestCrashBetweenEveryTwoSteps(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]map[string]error{"succeeds": nil, "fails": {"established": errBroken}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			count := len(walk(t, fail, nil))
			if count < 7 {
				t.Fatalf("only %d steps", count)
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

// walk runs a request through crashes, checks its end, and gives the steps that the last agent took.
func walk(t *testing.T, fail map[string]error, after []int) []string {
	t.Helper()
	r := newRig(t)
	r.tune = func(_ *Config, m *machine) { m.fail = fail }
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

// A claim whose request nobody can read any more is undone. What may only be unreadable for now is left alone.
func TestLostRequest(t *testing.T) {
	t.Parallel()
	keep := func(id string) func(string) error {
		return func(p string) error { return durable.Save(p, recordSchema, record{ID: id, Starts: 1}) }
	}
	tests := map[string]struct {
		prepare func(path string) error
		want    string // of New's error; empty: it is undone
	}{
		"never there":       {func(string) error { return nil }, ""},
		"damaged":           {func(p string) error { return os.WriteFile(p, []byte("x"), 0o600) }, ""},
		"of another":        {keep(idB), ""},
		"ticket unreadable": {keep(idA), ""},
		"newer":             {func(p string) error { return durable.Save(p, recordSchema+1, record{ID: idA}) }, "another schema"},
		"too many starts":   {func(p string) error { return durable.Save(p, recordSchema, record{ID: idA, Starts: maxStarts}) }, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			dir := r.agent.dir
			m := &machine{dir: dir}
			cfg := r.config(dir, m)
			err := errors.Join(cfg.Lock.Claim(lock.Init, idA), tt.prepare(cfg.RequestFile), os.WriteFile(m.node(), []byte("half"), 0o600))
			if err != nil {
				t.Fatal(err)
			}
			s, err := New(cfg)
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%v", err)
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
				t.Errorf("%v, %s", err, cfg.Lock.State())
			}
			if n := m.count("install"); n != 0 {
				t.Errorf("installed %d times", n)
			}
			if err := s.Resume(t.Context()); err != nil || m.count("wipe") != 1 {
				t.Errorf("once more: %v, wiped %d times", err, m.count("wipe"))
			}
			r.start(dir, nil)
			var failed *initclient.FailedError
			if _, err := r.client().Watch(t.Context(), idA, nil); !errors.As(err, &failed) {
				t.Errorf("%v", err)
			}
		})
	}
}

// A claim of a join, a free machine and a committed one are not for Resume.
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
			m := &machine{dir: r.agent.dir}
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

// An agent that is stopped in the middle undoes nothing.
func TestStopIsNoFailure(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.tune = func(_ *Config, m *machine) { m.hold = make(chan struct{}) }
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
		t.Errorf("%v", err)
	}
	if err := a.end(); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if s := open(t, a.dir).State(); s.Phase != lock.Claimed || a.machine.count("wipe") != 0 {
		t.Errorf("%s, wiped %d times", s, a.machine.count("wipe"))
	}
}

// doubtful is a journal whose disk does not tell whether it has written: some first times of a step.
type doubtful struct {
	*lock.Lock
	claims, commits int
	lost            bool // what is in doubt was not written
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

// While nobody knows whether the machine is committed, nothing is wiped. A claim that may be on the disk is given back.
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
			r.tune = func(c *Config, _ *machine) { c.Lock = &doubtful{open(t, r.agent.dir), tt.claims, tt.commits, false} }
			a, c := r.begin(), r.client()
			if _, err := c.Init(t.Context(), idA, ticket("n1")); err != nil {
				t.Fatal(err)
			}
			_, err := c.Watch(t.Context(), idA, nil)
			if ok := tt.want == lock.Committed; ok != (err == nil) {
				t.Errorf("%v", err)
			}
			if s := open(t, a.dir).State(); s.Phase != tt.want || a.machine.count("wipe") != tt.wipes {
				t.Errorf("%s, wiped %d times", s, a.machine.count("wipe"))
			}
			if err == nil {
				return
			}
			if _, err := c.Init(t.Context(), idB, ticket("n2")); err != nil {
				t.Errorf("the next: %v", err)
			}
			if _, err := c.Watch(t.Context(), idB, nil); err != nil {
				t.Errorf("the next: %v", err)
			}
		})
	}
}

// A request that has failed is not begun anew by the next agent, however well it would go now: the machine may be half clean.
func TestFailedIsNotBegunAnew(t *testing.T) {
	t.Parallel()
	fail := map[string]error{"established": errBroken}
	wipe := slices.Index(walk(t, fail, nil), "wipe")
	r := newRig(t)
	r.tune = func(_ *Config, m *machine) { m.fail, fail = fail, nil } // the first agent only
	c := &crashes{rig: r, after: []int{wipe}}
	_, next, err := c.run(t)
	var failed *initclient.FailedError
	if !errors.As(err, &failed) || failed.Why != errBroken.Error() {
		t.Errorf("%v", err)
	}
	if n := next.machine.count("install"); n != 0 || next.machine.count("wipe") != 1 || open(t, next.dir).State().Phase != lock.Free {
		t.Errorf("installed %d times, wiped %d times, %s", n, next.machine.count("wipe"), open(t, next.dir).State())
	}
}
