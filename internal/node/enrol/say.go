// SPDX-License-Identifier: Apache-2.0

package enrol

import "github.com/slipway-project/slipway/internal/reconcile"

// Items on the board.
const (
	itemLock   = "node/lock"   // a machine that belongs to nobody
	itemRoster = "node/roster" // in touch with the cluster
	itemRoutes = "node/routes" // to the other nodes' pods; only when something is wrong, or was
	itemKey    = "node/key"    // only when it was lost
	itemEtcd   = "node/etcd"   // a joined control plane's way into etcd, until it votes
)

// say puts one of our items on the board and remembers it for when the board begins anew.
func (e *Enrolment) say(s reconcile.Status) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.says[s.Ref] = s
	e.cfg.Board.Set(s)
}

func (e *Enrolment) unsay(ref string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.says, ref)
}

// Announce puts our items on a board that begins anew.
func (e *Enrolment) Announce() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.says {
		e.cfg.Board.Set(s)
	}
}
