// SPDX-License-Identifier: Apache-2.0

package initserver

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slipway-project/slipway/internal/initclient"
	"github.com/slipway-project/slipway/internal/node/lock"
)

// What fails leaves a free machine, tells why, and does not stand in the way of the next.
func TestFailureLeavesAFreeMachine(t *testing.T) {
	t.Parallel()
	block := func(name string) func(*testMachine) error { // no record can be written beside this
		return func(m *testMachine) error { return os.MkdirAll(filepath.Join(m.dir, name+".prev.tmp", "x"), 0o700) }
	}
	tests := map[string]struct {
		fail map[string]error
		do   func(*testMachine) error // when the cluster stands
		want string
	}{
		"install":     {map[string]error{"install": errBroken}, nil, "install: broken on purpose"},
		"established": {map[string]error{"established": errBroken}, nil, "broken on purpose"},
		"answer":      {nil, block("request"), "keep the init request"},
		"commit":      {nil, block("lock"), "commit this machine"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.tune = func(c *Config, m *testMachine) {
				m.fail = tt.fail
				if tt.do != nil { // it is tried for so long
					c.Deadline = 3 * time.Second
				}
				c.Pause = func(int) time.Duration { // the disk is mended
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
				t.Fatalf("%v", err)
			}
			if _, err := os.Stat(a.machine.node()); !errors.Is(err, os.ErrNotExist) || a.cfg.Lock.State().Phase != lock.Free {
				t.Errorf("the machine is not clean: %v, %s", err, a.cfg.Lock.State())
			}
			if phase, err := c.Init(t.Context(), idA, ticket("n1")); err != nil || phase != "failed" {
				t.Errorf("the same again: %q, %v", phase, err)
			}
			a.machine.mend()
			if err := os.RemoveAll(filepath.Join(a.dir, "request.prev.tmp")); err != nil { // the disk is mended
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

// A disk that is full when the cluster stands, and has room again, takes nothing away.
func TestFullDiskAtTheEnd(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"request", "lock"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			full := filepath.Join(r.agent.dir, name+".prev.tmp") // no record can be written beside this
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
				t.Errorf("%s, wiped %d times", a.cfg.Lock.State(), a.machine.count("wipe"))
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
	if _, err := c.Watch(t.Context(), idA, nil); err == nil || !strings.Contains(err.Error(), "did not come to be within 20ms") {
		t.Errorf("%v", err)
	}
	if a.cfg.Lock.State().Phase != lock.Free || a.machine.count("wipe") != 1 {
		t.Errorf("%s, wiped %d times", a.cfg.Lock.State(), a.machine.count("wipe"))
	}
}

// Cleaning is tried until it works, and the machine is nobody else's meanwhile, also when the claim itself is in doubt.
func TestWipeFails(t *testing.T) {
	t.Parallel()
	for name, doubts := range map[string]int{"claimed": 0, "claim in doubt": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			tries, mended := make(chan int), make(chan struct{})
			r.tune = func(c *Config, m *testMachine) {
				m.fail = map[string]error{"install": errBroken, "wipe": errBroken}
				c.Lock = &doubtful{Lock: open(t, r.agent.dir), claims: doubts, lost: true}
				c.Pause = func(try int) time.Duration {
					select {
					case tries <- try:
					case <-mended:
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
					t.Errorf("try %d, want %d", try, want)
				}
				if _, err := c.Init(t.Context(), idB, ticket("n2")); status.Code(err) != codes.FailedPrecondition {
					t.Errorf("%v", err)
				}
			}
			a.machine.mend()
			close(mended)
			if _, err := c.Watch(t.Context(), idA, nil); err == nil || a.cfg.Lock.State().Phase != lock.Free {
				t.Errorf("%v, %s", err, a.cfg.Lock.State())
			}
		})
	}
}
