// SPDX-License-Identifier: Apache-2.0

package control

import (
	"testing"
	"testing/synctest"
	"time"
)

// A deleted object is restored, and the board counts the step.
func TestPutBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, _, r := up(t, "a")
		says(t, "up", r.Board, ready("a"))
		if _, steps := r.Board.All(); steps != 0 {
			t.Errorf("got %d steps without a change, want 0", steps)
		}
		c.lacks["a"] = true
		c.drifted("Deployment kube-system/coredns")
		time.Sleep(2 * minPause)
		synctest.Wait()
		if _, steps := r.Board.All(); steps != 1 || len(c.applied) != 2 {
			t.Errorf("got %d steps after %v, want 1 after two applies", steps, c.applied)
		}
		c.nodeChanged("record of node n1")
		if _, steps := r.Board.All(); steps != 2 {
			t.Errorf("a node's record was written: got %d steps, want 2", steps)
		}
		time.Sleep(resync)
		synctest.Wait()
		if len(c.applied) != 3 {
			t.Errorf("without drift: applied %v, want a third apply", c.applied)
		}
	})
}

// Applies become rarer while another client keeps reverting them.
func TestOtherClientReverts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, _, _ := up(t, "a")
		for range 1000 {
			c.mu.Lock()
			c.lacks["a"] = true
			c.mu.Unlock()
			c.drifted("ConfigMap x")
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if n := len(c.applied); n < 10 || n > 30 {
			t.Errorf("applied %d times in 1000 s, want 10 to 30", n)
		}
	})
}
