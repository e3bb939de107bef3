// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// there is what the main table has for one destination.
type there struct {
	ours    *netlink.Route
	via     netip.Addr // ours
	foreign *netlink.Route
}

// list reads the main table of both families.
func list(h *netlink.Handle) (map[netip.Prefix]there, error) {
	all, err := h.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, err // also when the dump was interrupted: half a list would make routes look missing
	}
	have := map[netip.Prefix]there{}
	for i := range all {
		r := &all[i]
		dst, ok := prefix(r.Dst)
		if !ok {
			continue // a default route
		}
		t := have[dst]
		if r.Protocol == Protocol {
			t.ours = r
			t.via, _ = netip.AddrFromSlice(r.Gw)
			t.via = t.via.Unmap()
		} else {
			t.foreign = r
		}
		have[dst] = t
	}
	return have, nil
}

func prefix(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	p := netip.PrefixFrom(a.Unmap(), ones)
	return p, ok && p.IsValid() && ones > 0
}

// ensure sets one route. One to the right place stays; one of ours to another place is replaced in one step; one of somebody
// else's is theirs.
func ensure(h *netlink.Handle, t there, dst netip.Prefix, via netip.Addr, log *slog.Logger) error {
	if t.ours != nil && t.via == via {
		return nil
	}
	if t.ours == nil && t.foreign != nil {
		return fmt.Errorf("a route to %s that is not slipway's stands in the way (ip route show %s): remove it", dst, dst)
	}
	route := &netlink.Route{
		Dst: &net.IPNet{IP: dst.Addr().AsSlice(), Mask: net.CIDRMask(dst.Bits(), dst.Addr().BitLen())},
		Gw:  via.AsSlice(), Protocol: Protocol, Table: unix.RT_TABLE_MAIN,
	}
	set := h.RouteAdd
	if t.ours != nil {
		set = h.RouteReplace
	}
	err := set(route)
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		return fmt.Errorf("set route to pods %s: %s is on no network of this machine: nodes must reach each other without a router", dst, via)
	case err != nil:
		return fmt.Errorf("set route to pods %s via %s: %w", dst, via, err)
	}
	log.Info("route set", "pods", dst, "via", via)
	return nil
}

// gone reports whether what was to be removed is not there.
func gone(err error) bool { return errors.Is(err, unix.ESRCH) }
