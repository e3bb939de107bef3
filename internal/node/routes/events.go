// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// listen gives a hint each time the kernel's links or routes change, until ctx ends: a network that comes up takes its routes
// at once, and one that went away is told. Hints may be false; a lost one is made up for by the regular look.
func listen(ctx context.Context, ns netns.NsHandle) (<-chan struct{}, error) {
	s, err := nl.SubscribeAt(ns, netns.None(), unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("watch routes: %w", err)
	}
	hints := make(chan struct{}, 1)
	go func() {
		defer s.Close()
		defer context.AfterFunc(ctx, s.Close)() // wakes Receive
		for ctx.Err() == nil {
			_, _, err := s.Receive()
			switch {
			case errors.Is(err, unix.EINTR):
				continue
			case err != nil && !errors.Is(err, unix.ENOBUFS): // so many at once that some were lost: a hint like any other
				return
			}
			select {
			case hints <- struct{}{}:
			default: // one is on its way
			}
		}
	}()
	return hints, nil
}
