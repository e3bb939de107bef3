// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// wire makes the machine's cable what cuts say. The caller has locked the switch.
func (l *Local) wire(s Spec, c cuts) error {
	if err := l.wirePort(s, !c.of(s.Name)); err != nil {
		return fmt.Errorf("set port of %s: %w", s.Name, err)
	}
	var away []netip.Addr
	for _, other := range c.from(s.Name) {
		r, err := l.readRecord(s.Cluster, other)
		if err != nil {
			return err
		}
		if r.Spec.Address.IsValid() {
			away = append(away, r.Spec.Address)
		}
	}
	if err := l.wireNeighbours(s, away); err != nil {
		return fmt.Errorf("part %s from others: %w", s.Name, err)
	}
	return nil
}

func (l *Local) wirePort(s Spec, up bool) error {
	h, err := handleAt(l.switchPin(s.Cluster))
	if err != nil {
		return err
	}
	defer h.Close()
	port, err := h.LinkByName(portName(s.Name))
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil // the next start makes it
	}
	if err != nil {
		return err
	}
	if up {
		return h.LinkSetUp(port)
	}
	return h.LinkSetDown(port)
}

// nobody is the hardware address of no machine: what is sent to it is swallowed, as by a broken line. A neighbour entry needs
// no module of the kernel, as filters on a bridge do, and takes what is routed by way of that machine along.
func nobody() net.HardwareAddr { return net.HardwareAddr{0x02, 0x5b, 0, 0, 0, 0} }

func (l *Local) wireNeighbours(s Spec, away []netip.Addr) error {
	h, err := handleAt(l.folders(s.Cluster, s.Name).netns())
	if err != nil {
		return err
	}
	defer h.Close()
	eth0, err := h.LinkByName("eth0")
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return err
	}
	list, err := h.NeighList(eth0.Attrs().Index, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	for _, n := range list {
		if bytes.Equal(n.HardwareAddr, nobody()) {
			if err := h.NeighDel(&n); err != nil {
				return err
			}
		}
	}
	for _, a := range away {
		n := &netlink.Neigh{LinkIndex: eth0.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.IP(a.AsSlice()), HardwareAddr: nobody()}
		if err := h.NeighSet(n); err != nil {
			return err
		}
	}
	return nil
}

func handleAt(pin string) (*netlink.Handle, error) {
	ns, err := netns.GetFromPath(pin)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	return netlink.NewHandleAt(ns)
}
