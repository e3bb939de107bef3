// SPDX-License-Identifier: Apache-2.0

package enrol

import (
	"fmt"
	"os"

	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// LostKey is where a machine remembers that it had to make another key although it was in a cluster. The node runs on, and its
// cluster takes it for a stranger; so that the cluster refuses the machine's key does not say any more that it has let the node go.
func LostKey(key string) string { return key + ".lost" }

// hasLostKey is true, too, when nobody can tell whether the mark is there.
func (e *Enrolment) hasLostKey() bool {
	_, err := os.Lstat(LostKey(e.cfg.Paths.Key))
	return !os.IsNotExist(err)
}

// sayLostKey tells what the refusals of the cluster cannot.
func (e *Enrolment) sayLostKey(now lock.State) {
	if !e.hasLostKey() {
		return
	}
	e.say(reconcile.Status{
		Ref: itemKey, Phase: reconcile.Failing, Error: "the machine's key was lost: its cluster takes it for a stranger",
		For: wait.For{Who: fmt.Sprintf("slipway node approve %s", now.Node)},
	})
}

// knownAgain is told when the cluster has sent this node a roster, which it does for nobody whose key it does not know.
func (e *Enrolment) knownAgain() {
	if !e.hasLostKey() {
		return
	}
	if err := os.Remove(LostKey(e.cfg.Paths.Key)); err != nil {
		e.cfg.Log.Warn("forget that the key was lost", "error", err)
		return
	}
	e.unsay(itemKey)
	e.cfg.Board.Drop(itemKey)
}

// unlessLost asks for a roster in any case while the key is a new one: whether one comes tells whether the cluster knows it.
func (e *Enrolment) unlessLost(generation func() uint64) func() uint64 {
	return func() uint64 {
		if e.hasLostKey() {
			return 0
		}
		return generation()
	}
}
