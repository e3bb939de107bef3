// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/durable"
)

// A cluster's network consists of a namespace for the switch, which has a bridge with the subnet's first
// address, and one namespace per machine, connected by veth pairs:
//
//	machine netns            switch netns
//	 eth0 10.89.0.10/24 ───── v1a2b3c4d ┐
//	                                    ├ br0 10.89.0.1/24 ─ no uplink
//	 eth0 10.89.0.11/24 ───── v5e6f7a8b ┘
//
// There is no uplink, and packets to unknown addresses are rejected instead of dropped: the switch treats
// every other address as local, so TCP is refused and UDP gets "port unreachable" at once. (A switch without
// routes would send ICMP unreachable. On a single host it arrives while the connecting socket is still
// locked, and the kernel then retries for seconds.) Namespaces are kept alive by nsfs bind mounts below the
// cluster's directory, not by processes.
const (
	bridgeName = "br0"
	linkMTU    = 1500
)

// ensureNetwork creates what is missing of the switch and of the machine's namespace, and keeps what is right.
func (l *Local) ensureNetwork(s Spec) error {
	unlock, err := durable.LockDirBriefly(l.clusterDir(s.Cluster)) // all machines share the switch
	if err != nil {
		return fmt.Errorf("lock switch of %s: %w", s.Cluster, err)
	}
	defer unlock()
	sw, err := ensureNetns(l.switchPin(s.Cluster), map[string]string{
		"ipv4/ip_forward":            "1",
		"ipv4/conf/all/rp_filter":    "0",
		"ipv4/conf/all/accept_local": "1",
		"ipv4/conf/all/arp_ignore":   "1", // local addresses are a matter of routing only
		"ipv4/icmp_echo_ignore_all":  "1", // no host has these addresses: ping must not report one
		"ipv4/icmp_ratelimit":        "0", // a client waits for each "unreachable"
	})
	if err != nil {
		return err
	}
	defer sw.Close()
	m, err := ensureNetns(l.paths(s.Cluster, s.Name).netns(), map[string]string{
		"ipv4/ip_forward":             "1",
		"ipv4/conf/all/rp_filter":     "0",
		"ipv4/conf/default/rp_filter": "0",
		"ipv4/icmp_ratelimit":         "0", // if a rejection is dropped, the client waits for its timeout
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
	p, err := l.readPartition(s.Cluster)
	if err != nil {
		return err
	}
	return l.applyPartition(s, p)
}

// ensureBridge creates the switch's bridge and the route that rejects packets to unknown addresses.
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
		return fmt.Errorf("reject unknown addresses: %w", err)
	}
	return nil
}

// ensureLink connects the machine to the bridge. If one end of the veth pair is missing, it creates a new pair.
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
	// Replace instead of add: the route from an earlier call is not an error.
	route := &netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: net.IP(gateway(s.Subnet).AsSlice())}
	if err := inMachine.RouteReplace(route); err != nil {
		return fmt.Errorf("set default route: %w", err)
	}
	return nil
}

// addPair adds the machine's veth pair. The end in the switch stays down until applyPartition brings it up.
func addPair(inSwitch *netlink.Handle, m netns.NsHandle, s Spec) error {
	br, err := inSwitch.LinkByName(bridgeName)
	if err != nil {
		return fmt.Errorf("find bridge: %w", err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.MasterIndex = portName(s.Name), linkMTU, br.Attrs().Index
	if old, err := inSwitch.LinkByName(attrs.Name); err == nil { // its other end was in an earlier namespace
		if err := inSwitch.LinkDel(old); err != nil {
			return fmt.Errorf("remove stale link: %w", err)
		}
	}
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(m), PeerHardwareAddr: hardwareAddr(s.Address), PeerMTU: linkMTU}
	if err := inSwitch.LinkAdd(pair); err != nil {
		return fmt.Errorf("add veth pair: %w", err)
	}
	return nil
}

// portName is the interface name of the machine's port on the switch.
func portName(machine string) string {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(machine))
	return fmt.Sprintf("v%08x", sum.Sum32())
}

// configure sets the link's address and brings up the link and the loopback.
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

// hardwareAddr is derived from the address, so that neighbour tables stay right after a machine is created
// again.
func hardwareAddr(a netip.Addr) net.HardwareAddr {
	ip := a.As4()
	return net.HardwareAddr{0x02, 0x5a, ip[0], ip[1], ip[2], ip[3]}
}

// ensureNetns returns the namespace pinned at path. If there is none, it creates and pins one with these
// /proc/sys/net settings. A pin that lost its namespace in a reboot of the host is an empty regular file and
// is used again.
func ensureNetns(path string, sysctls map[string]string) (netns.NsHandle, error) {
	if isPin(path) {
		return netns.GetFromPath(path)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return -1, fmt.Errorf("create namespace pin: %w", err)
	}
	f.Close()
	err = onNewThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("create network namespace: %w", err)
		}
		for name, value := range sysctls {
			if err := os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0o644); err != nil {
				return fmt.Errorf("set up network namespace: %w", err)
			}
		}
		return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "") // last: a pinned namespace is complete
	})
	if err != nil {
		return -1, fmt.Errorf("pin namespace %s: %w", path, err)
	}
	return netns.GetFromPath(path)
}

// isPin reports whether a namespace is mounted at path.
func isPin(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}

// applyPartition brings the machine's port and neighbour table in line with p. The caller has locked the switch.
func (l *Local) applyPartition(s Spec, p partition) error {
	if err := l.setPort(s, !p.isolates(s.Name)); err != nil {
		return fmt.Errorf("set port of %s: %w", s.Name, err)
	}
	var unreachable []netip.Addr
	for _, other := range p.separatedFrom(s.Name) {
		r, err := l.readRecord(s.Cluster, other)
		if err != nil {
			return err
		}
		if r.Spec.Address.IsValid() {
			unreachable = append(unreachable, r.Spec.Address)
		}
	}
	if err := l.blockNeighbours(s, unreachable); err != nil {
		return fmt.Errorf("separate %s from other machines: %w", s.Name, err)
	}
	return nil
}

// setPort brings the machine's port on the switch up or down.
func (l *Local) setPort(s Spec, up bool) error {
	h, err := handleAt(l.switchPin(s.Cluster))
	if err != nil {
		return err
	}
	defer h.Close()
	port, err := h.LinkByName(portName(s.Name))
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil // the next start creates it
	}
	if err != nil {
		return err
	}
	if up {
		return h.LinkSetUp(port)
	}
	return h.LinkSetDown(port)
}

// blackhole is a hardware address that no machine has: frames to it are lost, as on a broken line. Unlike
// filters on a bridge, a neighbour entry needs no kernel module, and it also affects traffic that is routed
// through that machine.
func blackhole() net.HardwareAddr { return net.HardwareAddr{0x02, 0x5b, 0, 0, 0, 0} }

// blockNeighbours makes exactly these addresses unreachable for the machine.
func (l *Local) blockNeighbours(s Spec, addrs []netip.Addr) error {
	h, err := handleAt(l.paths(s.Cluster, s.Name).netns())
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
		if bytes.Equal(n.HardwareAddr, blackhole()) {
			if err := h.NeighDel(&n); err != nil {
				return err
			}
		}
	}
	for _, a := range addrs {
		n := &netlink.Neigh{LinkIndex: eth0.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.IP(a.AsSlice()), HardwareAddr: blackhole()}
		if err := h.NeighSet(n); err != nil {
			return err
		}
	}
	return nil
}

// handleAt opens a netlink handle in the namespace pinned at a path.
func handleAt(pin string) (*netlink.Handle, error) {
	ns, err := netns.GetFromPath(pin)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	return netlink.NewHandleAt(ns)
}

// partition is a deliberate network partition of a cluster, for tests of failures. The zero value has no effect.
type partition struct {
	Isolated  []string    `json:"isolated,omitempty"`  // machines without any network, sorted
	Separated [][2]string `json:"separated,omitempty"` // pairs that cannot reach each other
}

const partitionSchema = 1

// isolates reports whether the machine is disconnected from the network.
func (p partition) isolates(machine string) bool { return slices.Contains(p.Isolated, machine) }

// separatedFrom names the machines that this one cannot reach, sorted.
func (p partition) separatedFrom(machine string) []string {
	var out []string
	for _, pair := range p.Separated {
		switch machine {
		case pair[0]:
			out = append(out, pair[1])
		case pair[1]:
			out = append(out, pair[0])
		}
	}
	slices.Sort(out)
	return out
}

// heal removes the machine from the partition.
func (p *partition) heal(machine string) {
	p.Isolated = slices.DeleteFunc(p.Isolated, func(m string) bool { return m == machine })
	p.Separated = slices.DeleteFunc(p.Separated, func(pair [2]string) bool { return slices.Contains(pair[:], machine) })
}

// Cut disconnects the machine's network cable: its port on the switch goes down and stays down over stops and
// starts until [Local.Heal]. The sockets in [Local.RunDir] keep working, like a console. The host's network
// is not changed.
func (l *Local) Cut(ctx context.Context, cluster, name string) error {
	return l.repartition(ctx, cluster, func(p *partition) {
		if !p.isolates(name) {
			p.Isolated = append(p.Isolated, name)
			slices.Sort(p.Isolated)
		}
	}, name)
}

// CutBetween separates two machines from each other; both still reach all others. [Local.Heal] of either ends
// it.
func (l *Local) CutBetween(ctx context.Context, cluster, a, b string) error {
	if a == b {
		return fmt.Errorf("cut machine %s from itself: name two machines", a)
	}
	pair := [2]string{min(a, b), max(a, b)}
	return l.repartition(ctx, cluster, func(p *partition) {
		if !slices.Contains(p.Separated, pair) {
			p.Separated = append(p.Separated, pair)
		}
	}, a, b)
}

// Heal reconnects the machine to all others, and also brings up a port that was taken down by other means
// than [Local.Cut].
func (l *Local) Heal(ctx context.Context, cluster, name string) error {
	return l.repartition(ctx, cluster, func(p *partition) { p.heal(name) }, name)
}

// repartition changes the partition that concerns these machines and applies it to all running machines.
func (l *Local) repartition(ctx context.Context, cluster string, change func(*partition), names ...string) error {
	for _, name := range names {
		if _, err := l.find(cluster, name); err != nil {
			return err
		}
	}
	return l.changePartition(cluster, change, func(p partition) error {
		all, err := l.machineNames(cluster) // includes the other machine of a pair
		if err != nil {
			return err
		}
		for _, name := range all {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			r, err := l.readRecord(cluster, name)
			if err != nil {
				return err
			}
			if r.Spec.Name == "" || !isPin(l.switchPin(cluster)) || !isPin(l.paths(cluster, name).netns()) {
				continue // its next start applies the partition
			}
			if err := l.applyPartition(r.Spec, p); err != nil {
				return err
			}
		}
		return nil
	})
}

// changePartition changes the stored partition and calls apply with it, if not nil, while it holds the
// switch's lock. It saves first, so that the next start does the rest after a crash.
func (l *Local) changePartition(cluster string, change func(*partition), apply func(partition) error) error {
	unlock, err := durable.LockDirBriefly(l.clusterDir(cluster))
	if err != nil {
		return fmt.Errorf("lock switch of %s: %w", cluster, err)
	}
	defer unlock()
	p, err := l.readPartition(cluster)
	if err != nil {
		return err
	}
	before := partition{slices.Clone(p.Isolated), slices.Clone(p.Separated)}
	change(&p)
	if apply == nil && slices.Equal(p.Isolated, before.Isolated) && slices.Equal(p.Separated, before.Separated) {
		return nil // removing a machine works on a full disk, too
	}
	if err := durable.Save(l.partitionFile(cluster), partitionSchema, p); err != nil {
		return fmt.Errorf("save network partition: %w", err)
	}
	if apply == nil {
		return nil
	}
	return apply(p)
}

func (l *Local) partitionFile(cluster string) string {
	return filepath.Join(l.clusterDir(cluster), ".partition.json")
}

// readPartition returns the zero partition if none is stored.
func (l *Local) readPartition(cluster string) (partition, error) {
	var p partition
	err := durable.Load(l.partitionFile(cluster), partitionSchema, &p)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return p, fmt.Errorf("read network partition of %s: %w (remove the file and its .prev and try again: the machines are then reconnected)", cluster, err)
	}
	return p, nil
}
