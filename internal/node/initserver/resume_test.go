// SPDX-License-Identifier: Apache-2.0

package initserver

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/initclient"
	"github.com/slipway-project/slipway/internal/node/lock"
)

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
			m := &testMachine{dir: dir}
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

// An agent that is stopped in the middle undoes nothing.
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
			r.tune = func(c *Config, _ *testMachine) {
				c.Lock = &doubtful{open(t, r.agent.dir), tt.claims, tt.commits, false}
			}
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
	r.tune = func(_ *Config, m *testMachine) { m.fail, fail = fail, nil } // the first agent only
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
