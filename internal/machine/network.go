// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/durable"
)

// A cluster's network is a namespace of its own, the switch, with a bridge that owns the subnet's first address, and one
// namespace per machine, joined by veth pairs:
//
//	machine netns            switch netns
//	 eth0 10.89.0.10/24 ───── v1a2b3c4d ┐
//	                                    ├ br0 10.89.0.1/24 ─ no way out
//	 eth0 10.89.0.11/24 ───── v5e6f7a8b ┘
//
// There is no way out, and what has no receiver is not swallowed: the switch takes every other address for its own, so that
// TCP is refused and UDP is told "port unreachable" at once. (ICMP unreachable, which a switch without routes would send,
// comes so early on one host that the connecting socket is still locked; the kernel then retries for seconds.) Namespaces are kept
// by nsfs bind mounts below the cluster's folder, not by processes.
const (
	bridgeName = "br0"
	linkMTU    = 1500
)

// ensureNetwork makes what is missing of the switch and of the machine's namespace. What is right stays untouched.
func (l *Local) ensureNetwork(s Spec) error {
	unlock, err := durable.HoldFolder(l.clusterDir(s.Cluster)) // the switch is everybody's
	if err != nil {
		return fmt.Errorf("lock switch of %s: %w", s.Cluster, err)
	}
	defer unlock()
	sw, err := ensureNetns(l.switchPin(s.Cluster), map[string]string{
		"ipv4/ip_forward":            "1",
		"ipv4/conf/all/rp_filter":    "0",
		"ipv4/conf/all/accept_local": "1",
		"ipv4/conf/all/arp_ignore":   "1", // own addresses are a matter of routing only
		"ipv4/icmp_echo_ignore_all":  "1", // nobody is there: ping must not say otherwise
		"ipv4/icmp_ratelimit":        "0", // unreachable is an answer that somebody waits for
	})
	if err != nil {
		return err
	}
	defer sw.Close()
	m, err := ensureNetns(l.folders(s.Cluster, s.Name).netns(), map[string]string{
		"ipv4/ip_forward":             "1",
		"ipv4/conf/all/rp_filter":     "0",
		"ipv4/conf/default/rp_filter": "0",
		"ipv4/icmp_ratelimit":         "0", // a refusal that is dropped is a client that waits out its time limit
	})
	if err != nil {
		return err
	}
	defer m.Close()
	if err := ensureBridge(sw, s.Subnet); err != nil {
		return fmt.Errorf("set up switch of %s: %w", s.Cluster, err)
	}
	if err := ensureLink(sw, m, s); err != nil {
		return fmt.Errorf("connect %s: %w", s.Name, err)
	}
	cuts, err := l.readCuts(s.Cluster)
	if err != nil {
		return err
	}
	return l.wire(s, cuts)
}

func ensureBridge(sw netns.NsHandle, subnet netip.Prefix) error {
	h, err := netlink.NewHandleAt(sw)
	if err != nil {
		return err
	}
	defer h.Close()
	br, err := h.LinkByName(bridgeName)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU, attrs.HardwareAddr = bridgeName, linkMTU, hardwareAddr(gateway(subnet))
		if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("add bridge: %w", err)
		}
		br, err = h.LinkByName(bridgeName)
	}
	if err != nil {
		return fmt.Errorf("find bridge: %w", err)
	}
	if err := configure(h, br, netip.PrefixFrom(gateway(subnet), subnet.Bits())); err != nil {
		return err
	}
	lo, err := h.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	everywhere := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: everywhere, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST}
	if err := h.RouteReplace(route); err != nil {
		return fmt.Errorf("refuse what has no receiver: %w", err)
	}
	return nil
}

// ensureLink connects the machine to the bridge. A pair of which one end is missing is made anew.
func ensureLink(sw, m netns.NsHandle, s Spec) error {
	inSwitch, err := netlink.NewHandleAt(sw)
	if err != nil {
		return err
	}
	defer inSwitch.Close()
	inMachine, err := netlink.NewHandleAt(m)
	if err != nil {
		return err
	}
	defer inMachine.Close()

	eth0, err := inMachine.LinkByName("eth0")
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		if err := addPair(inSwitch, m, s); err != nil {
			return err
		}
		eth0, err = inMachine.LinkByName("eth0")
	}
	if err != nil {
		return fmt.Errorf("find eth0: %w", err)
	}
	if err := configure(inMachine, eth0, netip.PrefixFrom(s.Address, s.Subnet.Bits())); err != nil {
		return err
	}
	// Replace, not add: the same route from an earlier call is no error.
	route := &netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: net.IP(gateway(s.Subnet).AsSlice())}
	if err := inMachine.RouteReplace(route); err != nil {
		return fmt.Errorf("set default route: %w", err)
	}
	return nil
}

func addPair(inSwitch *netlink.Handle, m netns.NsHandle, s Spec) error {
	br, err := inSwitch.LinkByName(bridgeName)
	if err != nil {
		return fmt.Errorf("find bridge: %w", err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.MasterIndex = portName(s.Name), linkMTU, br.Attrs().Index
	if old, err := inSwitch.LinkByName(attrs.Name); err == nil { // its other end is gone with an earlier namespace
		if err := inSwitch.LinkDel(old); err != nil {
			return fmt.Errorf("remove stale link: %w", err)
		}
	}
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(m), PeerHardwareAddr: hardwareAddr(s.Address), PeerMTU: linkMTU}
	if err := inSwitch.LinkAdd(pair); err != nil {
		return fmt.Errorf("add veth pair: %w", err)
	}
	return nil // wire brings it up
}

// portName is the machine's port on the switch.
func portName(machine string) string {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(machine))
	return fmt.Sprintf("v%08x", sum.Sum32())
}

// configure gives the link its address and brings it and the loopback up.
func configure(h *netlink.Handle, link netlink.Link, addr netip.Prefix) error {
	ip := &net.IPNet{IP: net.IP(addr.Addr().AsSlice()), Mask: net.CIDRMask(addr.Bits(), 32)}
	if err := h.AddrReplace(link, &netlink.Addr{IPNet: ip}); err != nil {
		return fmt.Errorf("set address of %s: %w", link.Attrs().Name, err)
	}
	lo, err := h.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	for _, l := range []netlink.Link{lo, link} {
		if err := h.LinkSetUp(l); err != nil {
			return fmt.Errorf("bring up %s: %w", l.Attrs().Name, err)
		}
	}
	return nil
}

// hardwareAddr is fixed by the address, so that nobody's neighbour table is wrong after a machine was made again.
func hardwareAddr(a netip.Addr) net.HardwareAddr {
	ip := a.As4()
	return net.HardwareAddr{0x02, 0x5a, ip[0], ip[1], ip[2], ip[3]}
}

// ensureNetns returns the namespace pinned at path, and makes and pins one with the given /proc/sys/net settings when there
// is none. A pin that lost its namespace, as after a reboot of the host, is a plain empty file and is used again.
func ensureNetns(path string, sysctls map[string]string) (netns.NsHandle, error) {
	if isPin(path) {
		return netns.GetFromPath(path)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return -1, fmt.Errorf("make namespace pin: %w", err)
	}
	f.Close()
	err = onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make network namespace: %w", err)
		}
		for name, value := range sysctls {
			if err := os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0o644); err != nil {
				return fmt.Errorf("set up network namespace: %w", err)
			}
		}
		return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "") // last: a pinned namespace is a finished one
	})
	if err != nil {
		return -1, fmt.Errorf("pin namespace %s: %w", path, err)
	}
	return netns.GetFromPath(path)
}

func isPin(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}
