// SPDX-License-Identifier: Apache-2.0

// Package routes maintains the host's routes to the pods of other nodes: one route per node of the roster,
// via the node's address. It marks its routes with a protocol number and never changes other routes; a
// conflicting route is reported. It does not need the cluster: the last roster on disk is enough.
//
//	10.244.1.0/24 via 10.89.0.11 proto 93
//	10.244.2.0/24 via 10.89.0.12 proto 93
//
// Read [Config] and [Keep], then wanted in this file, which decides.
package routes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/slipway-project/slipway/internal/core/roster"
)

// Protocol marks our routes in the kernel ("proto 93" in the output of ip route).
const Protocol netlink.RouteProtocol = roster.RouteProtocol

// Config says whose routes to maintain.
type Config struct {
	Self string // this node's name: it has no route to its own pods
	// Now returns the roster and a channel that is closed when there is a newer one. While it returns an
	// error, no route is changed. rosterfile.File has this method.
	Now func() (r roster.Roster, changed <-chan struct{}, err error)
	Log *slog.Logger
	Say func(problem string) // optional: called when the problem has changed; "" when all routes are set

	Netns *netns.NsHandle // optional: another network namespace than this process's
	Every time.Duration   // optional: the interval of checks without an event; a minute
}

const (
	retry    = 2 * time.Second       // delay after a route could not be set: its network may be coming up
	debounce = 50 * time.Millisecond // minimum delay between two checks: each start of a pod causes several events
)

// Keep adds missing routes and removes routes of ours that are not wanted, at each change of the roster or
// of the kernel's routes and at regular intervals, until ctx ends. It leaves the routes when it ends: pods
// outlive the agent. It returns an error only if it cannot start.
func Keep(ctx context.Context, c Config) error {
	ns := netns.None()
	if c.Netns != nil {
		ns = *c.Netns
	}
	if c.Say == nil {
		c.Say = func(string) {}
	}
	if c.Every == 0 {
		c.Every = time.Minute
	}
	h, err := open(ns)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	events, err := watch(ctx, ns)
	if err != nil {
		return err
	}
	last, first := "", true
	for {
		r, changed, err := c.Now()
		if err == nil {
			err = reconcile(h, c.Self, r, c.Log)
		} else {
			err = fmt.Errorf("no roster: %w", err)
		}
		text, next := "", c.Every
		if err != nil {
			text, next = err.Error(), min(retry, c.Every)
		}
		if text != last || first {
			c.Say(text)
			if text != "" {
				c.Log.Warn("routes to other nodes' pods are incomplete", "reason", text)
			}
			last, first = text, false
		}
		if !pause(ctx, debounce, changed, nil) || !pause(ctx, next, changed, events) {
			return nil
		}
	}
}

// pause waits for the limit, another roster or an event. It returns false when ctx has ended.
func pause(ctx context.Context, limit time.Duration, changed, events <-chan struct{}) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-changed:
	case <-events:
	case <-timer.C:
	}
	return true
}

// reconcile makes the kernel's routes match the roster. A route that cannot be set does not prevent the
// others.
func reconcile(h *netlink.Handle, self string, r roster.Roster, log *slog.Logger) error {
	want, err := wanted(self, r)
	have, listErr := list(h)
	if listErr != nil {
		return errors.Join(err, fmt.Errorf("list routes: %w", listErr)) // nothing is changed without knowing the routes
	}
	problems := []error{err}
	for _, dst := range slices.SortedFunc(maps.Keys(want), netip.Prefix.Compare) {
		problems = append(problems, ensure(h, have[dst], dst, want[dst], log))
	}
	for dst, routes := range have {
		if _, ok := want[dst]; ok || routes.ours == nil {
			continue
		}
		if err := remove(h, routes.ours); err != nil {
			problems = append(problems, fmt.Errorf("remove route to %s: %w", dst, err))
			continue
		}
		log.Info("removed route", "pods", dst, "via", routes.via, "reason", "no node of the roster has this pod CIDR")
	}
	return errors.Join(problems...)
}

// wanted returns the routes that this node needs for a roster, by pod CIDR. An entry that would cut the
// node off or contradicts another one is left out and reported: the roster is signed, but the signer may
// have made a mistake.
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
			problems = append(problems, fmt.Errorf("node %q: pod CIDR %s already belongs to %s", n.Name, n.PodCIDR, other))
			continue
		}
		want[n.PodCIDR] = n.Address.Unmap()
	}
	return want, errors.Join(problems...)
}

func check(n, own roster.Node, r roster.Roster) error {
	switch {
	case !n.PodCIDR.IsValid() || n.PodCIDR != n.PodCIDR.Masked() || n.PodCIDR.Bits() == 0:
		return fmt.Errorf("%q is not a pod CIDR", n.PodCIDR)
	case !n.Address.IsValid() || n.Address.IsUnspecified() || n.Address.IsLoopback() || n.Address.IsMulticast():
		return fmt.Errorf("%q is not a node address", n.Address)
	case n.Address.Unmap().Is4() != n.PodCIDR.Addr().Is4():
		return fmt.Errorf("address %s and pod CIDR %s are of different IP families", n.Address, n.PodCIDR)
	case n.Address == own.Address:
		return fmt.Errorf("its address %s is this node's address", n.Address)
	case own.PodCIDR.IsValid() && own.PodCIDR.Overlaps(n.PodCIDR):
		return fmt.Errorf("its pod CIDR %s overlaps this node's %s", n.PodCIDR, own.PodCIDR)
	}
	for _, o := range r.Nodes {
		if n.PodCIDR.Contains(o.Address.Unmap()) {
			return fmt.Errorf("its pod CIDR %s contains the address of node %q", n.PodCIDR, o.Name)
		}
	}
	return nil
}
