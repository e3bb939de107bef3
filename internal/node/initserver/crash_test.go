// SPDX-License-Identifier: Apache-2.0

package initserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

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
