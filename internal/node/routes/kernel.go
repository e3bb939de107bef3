// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// existing are the routes of the main table to one destination.
type existing struct {
	ours  *netlink.Route
	via   netip.Addr // of ours
	other *netlink.Route
}

// open opens a netlink socket in a network namespace, or in this process's if ns is none.
func open(ns netns.NsHandle) (*netlink.Handle, error) {
	if !ns.IsOpen() {
		return netlink.NewHandle()
	}
	return netlink.NewHandleAt(ns)
}

// list reads the main table of both IP families. It fails if the dump was interrupted: an incomplete list
// would make routes look missing.
func list(h *netlink.Handle) (map[netip.Prefix]existing, error) {
	all, err := h.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, err
	}
	have := map[netip.Prefix]existing{}
	for i := range all {
		r := &all[i]
		dst, ok := prefix(r.Dst)
		if !ok {
			continue // a default route
		}
		e := have[dst]
		if r.Protocol == Protocol {
			e.ours = r
			e.via, _ = netip.AddrFromSlice(r.Gw)
			e.via = e.via.Unmap()
		} else {
			e.other = r
		}
		have[dst] = e
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

// ensure sets one route. A route of ours via another address is replaced atomically; a route that is not
// ours is an error.
func ensure(h *netlink.Handle, e existing, dst netip.Prefix, via netip.Addr, log *slog.Logger) error {
	if e.ours != nil && e.via == via {
		return nil
	}
	if e.ours == nil && e.other != nil {
		return fmt.Errorf("set route to %s: another route exists that slipway did not set (see ip route show %s, and remove it)", dst, dst)
	}
	route := &netlink.Route{
		Dst: &net.IPNet{IP: dst.Addr().AsSlice(), Mask: net.CIDRMask(dst.Bits(), dst.Addr().BitLen())},
		Gw:  via.AsSlice(), Protocol: Protocol, Table: unix.RT_TABLE_MAIN,
	}
	set := h.RouteAdd
	if e.ours != nil {
		set = h.RouteReplace
	}
	err := set(route)
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		return fmt.Errorf("set route to pods %s: %s is not on a network of this machine (nodes must reach each other without a router)", dst, via)
	case err != nil:
		return fmt.Errorf("set route to pods %s via %s: %w", dst, via, err)
	}
	log.Info("set route", "pods", dst, "via", via)
	return nil
}

// remove removes a route. A route that is gone already is not an error.
func remove(h *netlink.Handle, r *netlink.Route) error {
	if err := h.RouteDel(r); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

// watch returns a channel that receives a value after the kernel's links or routes have changed, until ctx
// ends. Events may be spurious; the regular checks make up for lost ones.
func watch(ctx context.Context, ns netns.NsHandle) (<-chan struct{}, error) {
	s, err := nl.SubscribeAt(ns, netns.None(), unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("watch routes: %w", err)
	}
	events := make(chan struct{}, 1)
	go func() {
		defer s.Close()
		defer context.AfterFunc(ctx, s.Close)() // wakes Receive
		for ctx.Err() == nil {
			_, _, err := s.Receive()
			switch {
			case errors.Is(err, unix.EINTR):
				continue
			case err != nil && !errors.Is(err, unix.ENOBUFS): // ENOBUFS: events were lost, which is an event, too
				return
			}
			select {
			case events <- struct{}{}:
			default: // one is pending already
			}
		}
	}()
	return events, nil
}
