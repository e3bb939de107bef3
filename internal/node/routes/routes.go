// SPDX-License-Identifier: Apache-2.0

// Package routes keeps the host's routes to the other nodes' pods: one per node of the roster, by the node's address. It marks
// its routes with a protocol number of their own, and touches no other route: what somebody else has set is left, and told.
// It needs no cluster: the last roster on the disk is enough.
//
//	10.244.1.0/24 via 10.89.0.11 proto 93
//	10.244.2.0/24 via 10.89.0.12 proto 93
//
// Read [Config] and [Keep], then [wanted] in wanted.go, which decides.
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

// Config says whose routes to keep.
type Config struct {
	Self string // this node's name: it has no route to its own pods
	// Now is the roster and a channel that is closed when there is another one; while there is none, an error and nothing is
	// touched. rosterfile.File has this method.
	Now func() (r roster.Roster, changed <-chan struct{}, err error)
	Log *slog.Logger
	Say func(problem string) // optional: called when what is wrong has changed; "" when every route stands

	Netns *netns.NsHandle // optional: another network namespace than this process's
	Every time.Duration   // optional: how often everything is looked at again; a minute
}

// retry is how soon a route that could not be set is tried again: its network may be on its way up.
const retry = 2 * time.Second

// Keep sets what is missing and removes what is ours and not wanted, at each change of the roster and now and then, until
// ctx ends. The routes stay then: pods outlive the agent. It returns an error only when it cannot begin.
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
	h, err := handle(ns)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	hints, err := listen(ctx, ns)
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
				c.Log.Warn("routes to other nodes' pods are not complete", "why", text)
			}
			last, first = text, false
		}
		if !pause(ctx, calm, changed, nil) || !pause(ctx, next, changed, hints) {
			return nil
		}
	}
}

// calm is the least time between two looks that hints ask for: each pod's start is several of them.
const calm = 50 * time.Millisecond

// pause ends after limit, or sooner when there is another roster or a hint; false when ctx has ended.
func pause(ctx context.Context, limit time.Duration, changed, hints <-chan struct{}) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-changed:
	case <-hints:
	case <-timer.C:
	}
	return true
}

func handle(ns netns.NsHandle) (*netlink.Handle, error) {
	if !ns.IsOpen() {
		return netlink.NewHandle()
	}
	return netlink.NewHandleAt(ns)
}

// reconcile makes the kernel's routes what the roster says. One that cannot be set does not keep the others from being set.
func reconcile(h *netlink.Handle, self string, r roster.Roster, log *slog.Logger) error {
	want, err := wanted(self, r)
	have, listErr := list(h)
	if listErr != nil {
		return errors.Join(err, fmt.Errorf("list routes: %w", listErr)) // without knowing, nothing is changed
	}
	problems := []error{err}
	for _, dst := range slices.SortedFunc(maps.Keys(want), netip.Prefix.Compare) {
		problems = append(problems, ensure(h, have[dst], dst, want[dst], log))
	}
	for dst, there := range have {
		if _, ok := want[dst]; ok || there.ours == nil {
			continue
		}
		if err := h.RouteDel(there.ours); err != nil && !gone(err) {
			problems = append(problems, fmt.Errorf("remove route to %s: %w", dst, err))
			continue
		}
		log.Info("route removed", "pods", dst, "via", there.via, "why", "no node of the roster has this range")
	}
	return errors.Join(problems...)
}
