// SPDX-License-Identifier: Apache-2.0

package roster

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/admission"
)

// Ports that every control plane serves on.
const (
	APIPort  = 6443
	JoinPort = 9440
)

// From makes the roster of a cluster's records: its endpoints are the control planes that vote in etcd, its nodes all that
// have an address and a share of the pod range. A control plane that is being removed is an endpoint only while there is no
// other. The generation is left zero. Without any endpoint the roster is not fit to be published; see [Roster.Usable].
func From(cluster string, nodes []admission.Node, voters, extra []string) Roster {
	r := Roster{Cluster: cluster, API: []netip.AddrPort{}, Join: []netip.AddrPort{}, Extra: slices.Clone(extra), Nodes: []Node{}}
	var stay, leave []netip.Addr
	for _, n := range nodes {
		address := n.Address.Unmap()
		if !address.IsValid() {
			continue // nobody has come yet
		}
		if slices.Contains(voters, n.Name) {
			if n.Removing {
				leave = append(leave, address)
			} else {
				stay = append(stay, address)
			}
		}
		if n.PodCIDR.IsValid() {
			r.Nodes = append(r.Nodes, Node{n.Name, address, n.PodCIDR.Masked()})
		}
	}
	if len(stay) == 0 {
		stay = leave
	}
	slices.SortFunc(stay, netip.Addr.Compare)
	for _, a := range slices.Compact(stay) {
		r.API = append(r.API, netip.AddrPortFrom(a, APIPort))
		r.Join = append(r.Join, netip.AddrPortFrom(a, JoinPort))
	}
	slices.SortFunc(r.Nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	return r
}

// Usable reports whether nodes could find the cluster by it.
func (r Roster) Usable() bool { return len(r.API) > 0 && len(r.Join) > 0 }

// Same reports whether two rosters say the same, whatever their generations.
func (r Roster) Same(o Roster) bool {
	return r.Cluster == o.Cluster && slices.Equal(r.API, o.API) && slices.Equal(r.Join, o.Join) &&
		slices.Equal(r.Extra, o.Extra) && slices.Equal(r.Nodes, o.Nodes)
}
