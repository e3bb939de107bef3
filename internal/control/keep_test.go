// SPDX-License-Identifier: Apache-2.0

package control

import (
	"testing"
	"testing/synctest"
	"time"
)

// What somebody deletes is put back, and the board counts it.
func TestPutBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, _, r := up(t, "a")
		says(t, "up", r.Board, ready("a"))
		if _, steps := r.Board.All(); steps != 0 {
			t.Errorf("%d steps, and nothing has changed", steps)
		}
		c.lacks["a"] = true
		c.drifted("Deployment kube-system/coredns")
		time.Sleep(2 * firstRest)
		synctest.Wait()
		if _, steps := r.Board.All(); steps != 1 || len(c.applied) != 2 {
			t.Errorf("%d steps after %v", steps, c.applied)
		}
		c.nodeChanged("record of node n1")
		if _, steps := r.Board.All(); steps != 2 {
			t.Errorf("a node's record was written: %d steps", steps)
		}
		time.Sleep(lookAgain)
		synctest.Wait()
		if len(c.applied) != 3 {
			t.Errorf("without any drift it is applied now and then: %v", c.applied)
		}
	})
}

// Somebody who changes at once what we put back is not fought at full speed.
func TestQuarrel(t *testing.T) {
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
			t.Errorf("applied %d times in 1000 s", n)
		}
	})
}
