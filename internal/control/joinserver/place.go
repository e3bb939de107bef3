// SPDX-License-Identifier: Apache-2.0

package joinserver

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/slipway-project/slipway/internal/core/admission"
)

// isElsewhere tells whether a record's machine, or a copy of its disk, comes from another address than the record has. Before
// the first join there is nothing to compare with.
func (e *session) isElsewhere(n admission.Node) bool {
	return !n.JoinedAt.IsZero() && n.Address.IsValid() && n.Address != e.from()
}

func (e *session) from() netip.Addr { return e.peer.Addr.Addr().Unmap() }

// gone is the address of a record whose machine is known not to be alive there: no stream comes from anywhere else, and Kubernetes
// has not heard of it for a while. Zero is every other case; not to know is an error.
func (e *session) gone(ctx context.Context, n admission.Node) (netip.Addr, error) {
	if !e.isElsewhere(n) || e.ControlPlane(n.Pool) || e.budgets.elsewhere(n.Key, e.from()) {
		return netip.Addr{}, nil
	}
	alive, err := e.Alive(ctx, n.Name)
	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("ask whether node %s is alive at %s: %w", n.Name, n.Address, err)
	case alive:
		return netip.Addr{}, nil
	}
	return n.Address, nil
}

// goneBefore is gone for a machine that joins, whose record is looked up only if the list says that it comes from elsewhere.
func (j *joining) goneBefore(ctx context.Context) (netip.Addr, error) {
	n, found, known := j.standing.find(j.peer.Key)
	if known && (!found || !j.isElsewhere(n)) {
		return netip.Addr{}, nil
	}
	n, found, err := j.Records.ByKey(ctx, j.peer.Key)
	if err != nil || !found {
		return netip.Addr{}, err
	}
	return j.gone(ctx, n)
}

// silentHere is the address of the machine that asks, if the node that has it in the records is known not to be alive. It is asked
// only where the spec lets such a machine take the node's place.
func (j *joining) silentHere(ctx context.Context) (netip.Addr, error) {
	n, found := j.standing.at(j.from())
	if !found || n.Key == "" || n.Key == j.peer.Key || j.ByAddress == nil || !j.ByAddress(n.Pool) || j.budgets.elsewhere(n.Key, netip.Addr{}) {
		return netip.Addr{}, nil
	}
	alive, err := j.Alive(ctx, n.Name)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("ask whether node %s is alive: %w", n.Name, err)
	}
	if alive {
		return netip.Addr{}, nil
	}
	return n.Address, nil
}

// place lets a node's stream begin where the record says that it is. From elsewhere the records decide, as for a machine that joins:
// the record follows a worker that has moved, and nobody gets in beside one that is alive.
func (y *syncing) place(ctx context.Context, n admission.Node) (admission.Node, error) {
	if !y.isElsewhere(n) {
		return n, nil
	}
	gone, err := y.gone(ctx, n)
	if err != nil {
		return n, err
	}
	moved, err := y.Records.Admit(ctx, admission.Request{
		Key: n.Key, ClaimedNode: n.Name, Kubernetes: n.Kubernetes, Address: y.from(), Facts: n.Facts, Gone: gone,
	})
	if err != nil {
		return n, err
	}
	if moved.Key != n.Key || moved.Name != n.Name {
		return n, fmt.Errorf("the records moved node %s when %s has moved", moved.Name, n.Name)
	}
	y.audit(Moved, fmt.Sprintf("from %s to %s", n.Address, y.from()))
	return moved, nil
}

// elsewhereNow ends a stream whose node is at another address by now: somebody has approved that, or it has moved.
func (y *syncing) elsewhereNow(n admission.Node) error {
	if !y.isElsewhere(n) {
		return nil
	}
	return &admission.Refusal{Reason: admission.KeyInUse, Text: fmt.Sprintf("node %s is at %s now", n.Name, n.Address)}
}
