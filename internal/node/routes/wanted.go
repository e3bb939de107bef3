// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/slipway-project/slipway/internal/core/roster"
)

// wanted is the routes that a roster asks of this node. A line that would cut the node off, or that contradicts another one,
// is left out and told: the list is signed, but whoever signed it can have made a mistake.
func wanted(self string, r roster.Roster) (map[netip.Prefix]netip.Addr, error) {
	var own roster.Node
	for _, n := range r.Nodes {
		if n.Name == self {
			own = n
		}
	}
	var problems []error
	want := map[netip.Prefix]netip.Addr{}
	for _, n := range r.Nodes {
		if n.Name == self {
			continue
		}
		if err := check(n, own, r); err != nil {
			problems = append(problems, fmt.Errorf("node %q: %w", n.Name, err))
			continue
		}
		if other, ok := want[n.PodCIDR]; ok {
			problems = append(problems, fmt.Errorf("node %q: %s belongs to %s already", n.Name, n.PodCIDR, other))
			continue
		}
		want[n.PodCIDR] = n.Address.Unmap()
	}
	return want, errors.Join(problems...)
}

func check(n, own roster.Node, r roster.Roster) error {
	switch {
	case !n.PodCIDR.IsValid() || n.PodCIDR != n.PodCIDR.Masked() || n.PodCIDR.Bits() == 0:
		return fmt.Errorf("%q is no range of pods", n.PodCIDR)
	case !n.Address.IsValid() || n.Address.IsUnspecified() || n.Address.IsLoopback() || n.Address.IsMulticast():
		return fmt.Errorf("%q is no address of a node", n.Address)
	case n.Address.Unmap().Is4() != n.PodCIDR.Addr().Is4():
		return fmt.Errorf("%s and %s are of different families", n.Address, n.PodCIDR)
	case n.Address == own.Address:
		return fmt.Errorf("it has this node's address %s", n.Address)
	case own.PodCIDR.IsValid() && own.PodCIDR.Overlaps(n.PodCIDR):
		return fmt.Errorf("its pods %s overlap this node's %s", n.PodCIDR, own.PodCIDR)
	}
	for _, o := range r.Nodes {
		if n.PodCIDR.Contains(o.Address.Unmap()) {
			return fmt.Errorf("its pods %s hold the address of node %q", n.PodCIDR, o.Name)
		}
	}
	return nil
}
