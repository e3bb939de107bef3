// SPDX-License-Identifier: Apache-2.0

// Package facts detects the properties of this machine: for the cluster's records ([Find]), for units ([File]) and for the
// preparation of the machine ([PackageManager], [SharedKernel]). A fact that cannot be detected is empty. It is never replaced
// by a guess.
//
// Read [Find] and [File].
//
//	machine.Facts{Address: 10.89.0.10, CgroupV1: true, OOMScoreAdj: false, UpstreamDNS: false}
package facts

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/core/machine"
)

// Find returns the facts of the machine that this process runs on.
func Find() (machine.Facts, error) {
	route, err := defaultRoute()
	if err != nil {
		return machine.Facts{}, fmt.Errorf("find the default route: %w", err)
	}
	addr, err := address(route)
	if err != nil {
		return machine.Facts{}, fmt.Errorf("find the machine's address: %w", err)
	}
	f := machine.Facts{Address: addr, CgroupV1: cgroupV1(), OOMScoreAdj: mayLowerOOMScore(), UpstreamDNS: upstreamDNS()}
	if route != nil {
		f.MTU = route.mtu
	}
	f.ProductUUID, f.MachineID = identity("/")
	return f, nil
}

// identity returns the IDs that the firmware and the operating system give to the machine. An ID that cannot be read is empty.
func identity(root string) (productUUID, machineID string) {
	read := func(path string) string {
		text, _ := os.ReadFile(filepath.Join(root, path))
		return oneWord(string(text))
	}
	return read("sys/class/dmi/id/product_uuid"), read("etc/machine-id")
}

// outgoing is a default route.
type outgoing struct {
	link netlink.Link
	mtu  int // of the route, otherwise of its interface
}

// defaultRoute returns the default route with the lowest metric, or nil if there is none.
func defaultRoute() (*outgoing, error) {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, err
	}
	best := -1
	for i, r := range routes {
		if isDefault(r) && (best < 0 || r.Priority < routes[best].Priority) {
			best = i
		}
	}
	if best < 0 {
		return nil, nil
	}
	link, err := netlink.LinkByIndex(routes[best].LinkIndex)
	if err != nil {
		return nil, err
	}
	return &outgoing{link: link, mtu: cmp.Or(routes[best].MTU, link.Attrs().MTU)}, nil
}

// address returns the first global address of the interface of the default route. Without a default route, it returns the
// machine's global address if there is exactly one. Otherwise it returns the zero Addr.
func address(route *outgoing) (netip.Addr, error) {
	if route != nil {
		all, err := global(route.link)
		if err != nil || len(all) == 0 {
			return netip.Addr{}, err
		}
		return all[0], nil
	}
	all, err := global(nil)
	if err != nil || len(all) != 1 {
		return netip.Addr{}, err
	}
	return all[0], nil
}

func isDefault(r netlink.Route) bool {
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0 && r.Dst.IP.IsUnspecified()
}

// global returns the global IPv4 addresses of an interface, or of all interfaces if link is nil.
func global(link netlink.Link) ([]netip.Addr, error) {
	list, err := netlink.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP.To4()); ok && a.Scope == unix.RT_SCOPE_UNIVERSE && !addr.IsLoopback() {
			out = append(out, addr)
		}
	}
	return out, nil
}

// cgroupV1 reports whether the machine uses cgroup v1, with the same check as the kubelet.
func cgroupV1() bool {
	var fs unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &fs); err != nil {
		return false
	}
	return fs.Type != unix.CGROUP2_SUPER_MAGIC
}

// mayLowerOOMScore reports whether this process has CAP_SYS_RESOURCE, which the kernel requires for lowering an OOM score.
func mayLowerOOMScore() bool {
	status, err := os.ReadFile("/proc/self/status")
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			return hasBit(strings.TrimSpace(hex), unix.CAP_SYS_RESOURCE)
		}
	}
	return false
}

// upstreamDNS reports whether /etc/resolv.conf has a nameserver that pods can reach, too: one that is not a loopback address.
func upstreamDNS() bool {
	text, err := os.ReadFile("/etc/resolv.conf")
	return err == nil && namesUpstream(string(text))
}

func namesUpstream(resolvConf string) bool {
	for line := range strings.Lines(resolvConf) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		if addr, err := netip.ParseAddr(f[1]); err == nil && !addr.IsLoopback() {
			return true
		}
	}
	return false
}

// hasBit reports whether a bit is set in a mask of hexadecimal digits.
func hasBit(hex string, bit int) bool {
	i := len(hex) - 1 - bit/4
	if i < 0 {
		return false
	}
	digit := strings.IndexByte("0123456789abcdef", hex[i])
	return digit >= 0 && digit>>(bit%4)&1 == 1
}
