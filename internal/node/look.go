// SPDX-License-Identifier: Apache-2.0

package node

import "github.com/slipway-project/slipway/internal/reconcile"

// lookNow asks for another look at the machine, during which nothing counts as converged. It is false when a look is not
// enough, because the control role has ended and only begins with a plan.
func (a *Agent) lookNow() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return false
	}
	a.wanted++
	if a.idle { // what is under way counts its own steps
		a.board.ResetSteps()
	}
	select {
	case a.look <- struct{}{}:
	default: // it has not begun with the last one yet
	}
	return true
}

// beginLook returns which of the wanted looks this one answers.
func (a *Agent) beginLook() (asked int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.idle = false
	return a.wanted
}

func (a *Agent) endLook(asked int) {
	a.mu.Lock()
	a.looked, a.idle = asked, asked == a.wanted
	a.mu.Unlock()
	a.board.Resend() // whoever waits for the look's end has to hear of it
}

// up: everything announced is ready, the control role's items included, and the machine has been looked at since somebody
// asked for that.
func (a *Agent) up(all []reconcile.Status) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return allReady(all) && a.looked == a.wanted
}

func allReady(all []reconcile.Status) bool {
	for _, item := range all {
		if item.Phase != reconcile.Ready {
			return false
		}
	}
	return len(all) > 0
}
