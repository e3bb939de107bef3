// SPDX-License-Identifier: Apache-2.0

package enrol

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/slipway-project/slipway/internal/core/roster"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/node/rosterfile"
	"github.com/slipway-project/slipway/internal/reconcile"
	"github.com/slipway-project/slipway/internal/sleep"
)

const (
	itemPlace  = "node/place" // only while the disk is elsewhere than its cluster knows it
	lookPlaced = 500 * time.Millisecond
)

// Hold keeps a worker's plan from beginning where its disk wakes up in another place than the cluster knows it: a copy of the disk
// would fight with its original over one Node. It lets go as soon as the cluster says that the node is here now, and at once
// where there is no evidence of that: a machine in its place needs nobody to come up.
func (e *Enrolment) Hold(ctx context.Context) {
	for {
		there, elsewhere := e.elsewhere()
		if !elsewhere {
			e.unsay(itemPlace)
			e.cfg.Board.Drop(itemPlace)
			return
		}
		e.say(reconcile.Status{
			Ref: itemPlace, Phase: reconcile.Failing,
			Error: fmt.Sprintf("it has no leave to run here, at %s: the cluster knows this node at %s, and does not let it in twice", e.cfg.Facts.Address, there),
			For: wait.For{Who: fmt.Sprintf("a control plane, once the machine at %s has been silent for a minute; or slipway node approve %s, if this machine is the one that is wanted",
				there, e.cfg.Lock.State().Node)},
		})
		if sleep.For(ctx, lookPlaced) != nil {
			return
		}
	}
}

// elsewhere compares the roster on the disk with this machine's addresses. A control plane is where its etcd is.
func (e *Enrolment) elsewhere() (there netip.Addr, yes bool) {
	now, here := e.cfg.Lock.State(), e.cfg.Facts.Address
	if now.Phase != lock.Committed || !here.IsValid() || e.controls() {
		return there, false
	}
	ca, err := readCert(e.cfg.Paths.JoinCA)
	if err != nil {
		return there, false
	}
	r, err := rosterfile.Load(e.cfg.Paths.Roster, ca)
	if err != nil {
		return there, false
	}
	there = addressOf(r, now.Node)
	return there, there.IsValid() && there != here && !e.cfg.Has(there)
}

func addressOf(r roster.Roster, node string) netip.Addr {
	for _, n := range r.Nodes {
		if n.Name == node {
			return n.Address
		}
	}
	return netip.Addr{}
}

// hasAddress tells whether the machine has this address; also when nobody can say.
func hasAddress(a netip.Addr) bool {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return true
	}
	for _, one := range all {
		if p, err := netip.ParsePrefix(one.String()); err == nil && p.Addr().Unmap() == a {
			return true
		}
	}
	return false
}
