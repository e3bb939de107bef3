// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"errors"
	"fmt"
	"time"
)

// Register adds the operator's nodes: it makes the records that are missing, and fills in a key or an address that a record
// does not have yet. It never replaces a key, a pool or a range, and never brings back what was removed: the same name comes
// back with another key only. Where a record has another key than the operator says, that machine waits for approval. What it
// cannot do for one node is part of the error and keeps no other node out.
func (r Records) Register(document []Node, now time.Time) (Records, error) {
	var errs []error
	for _, n := range document {
		out, err := r.register(n, now)
		if err != nil {
			errs = append(errs, fmt.Errorf("register %w", err))
			continue
		}
		r = out
	}
	return r, errors.Join(errs...)
}

func (r Records) register(n Node, now time.Time) (Records, error) {
	switch {
	case !ValidName(n.Name):
		return r, fmt.Errorf("node %.80q: this cannot be the name of a node", n.Name)
	case n.Key != "" && !n.Key.Valid():
		return r, fmt.Errorf("node %s: %.80q is not the pin of a key", n.Name, n.Key)
	}
	if r.removedKey(n.Key) && n.Key != "" {
		return r, nil
	}
	old, ok := r.Node(n.Name)
	if !ok {
		if r.removedName(n.Name) && n.Key == "" {
			return r, nil
		}
		return r.Put(Node{Name: n.Name, Pool: n.Pool, Index: n.Index, PodCIDR: n.PodCIDR, Address: n.Address.Unmap(), Key: n.Key, Kubernetes: n.Kubernetes, Facts: n.Facts, JoinedAt: n.JoinedAt.UTC()})
	}
	filled := old
	if !filled.Address.IsValid() {
		filled.Address = n.Address.Unmap()
	}
	switch {
	case n.Key == "" || n.Key == old.Key || old.Removing:
	case old.Key == "":
		filled.Key = n.Key
	case old.PendingKey == "":
		if _, taken := r.first(func(o *Node) bool { return o.Key == n.Key || o.PendingKey == n.Key }); !taken {
			filled.PendingKey, filled.PendingAt = n.Key, now.UTC()
		}
	}
	if filled == old {
		return r, nil
	}
	return r.Put(filled)
}
