// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"cmp"
	"net/netip"
)

const networking = "spec.networking"

// ranges returns the pod CIDR and the service CIDR, with defaults.
func (k *checker) ranges() (pods, services netip.Prefix) {
	n := k.out.Networking
	return cmp.Or(n.PodCIDR, netip.MustParsePrefix(DefaultPodCIDR)), cmp.Or(n.ServiceCIDR, netip.MustParsePrefix(DefaultServiceCIDR))
}

func (k *checker) network() {
	n := &k.out.Networking
	k.prefix(networking+".podCIDR", &n.PodCIDR)
	k.prefix(networking+".serviceCIDR", &n.ServiceCIDR)
	pods, services := k.ranges()
	if pods.Overlaps(services) {
		k.say(k.firstSet(networking+".serviceCIDR", networking+".podCIDR"), "choose ranges that do not overlap",
			"the service CIDR %s overlaps the pod CIDR %s", services, pods)
	}
	// The API server accepts at most 20 bits. A range needs the first, the tenth and some more addresses.
	switch bits := services.Bits(); {
	case bits < 12:
		k.say(networking+".serviceCIDR", "choose a prefix from /12 to /27", "%s is too large for Services", services)
	case bits > 27:
		k.say(networking+".serviceCIDR", "choose a prefix from /12 to /27", "%s is too small for Services", services)
	}
	k.nodePodPrefix(pods)
	k.dnsAddress(services)
	const smallestMTU, largestMTU = 1280, 65535 // the smallest of IPv6, which programs expect of any network
	if path := networking + ".mtu"; k.out.IsSet(path) && (n.MTU < smallestMTU || n.MTU > largestMTU) {
		k.say(path, "choose 1280 to 65535, or remove the field to use the MTU of each node's default route", "%d is not a usable MTU for pods", n.MTU)
	}
	const longest = 200
	if path := networking + ".clusterDomain"; k.out.IsSet(path) && (!isDomain(n.ClusterDomain) || len(n.ClusterDomain) > longest) {
		k.say(path, "write lower-case DNS labels joined by dots, without a dot at the end", "%s is not a DNS domain", show(n.ClusterDomain))
	}
}

// nodePodPrefix checks that the pod CIDR can be divided into pod CIDRs of nodes.
func (k *checker) nodePodPrefix(pods netip.Prefix) {
	const path = networking + ".nodePodPrefix"
	bits := k.out.Networking.NodePodPrefix
	if !k.out.IsSet(path) {
		bits = DefaultNodePodPrefix
	}
	at := k.firstSet(path, networking+".podCIDR")
	const smallest, most = 28, 16
	switch {
	case bits > smallest || bits < 8:
		k.say(path, "choose a prefix length from 8 to 28", "/%d is not a usable size for a node's pod CIDR", bits)
	case bits < pods.Bits():
		k.say(at, "choose a longer nodePodPrefix or a larger podCIDR", "a node's pod CIDR /%d is larger than the pod CIDR %s", bits, pods)
	case bits-pods.Bits() > most:
		k.say(at, "choose a shorter nodePodPrefix or a smaller podCIDR", "%s holds more than 65536 node pod CIDRs of /%d", pods, bits)
	}
}

// maxNodes returns for how many nodes the pod CIDR has room, or 0 if the document does not say.
func (k *checker) maxNodes() int {
	pods, _ := k.ranges()
	bits := cmp.Or(k.out.Networking.NodePodPrefix, DefaultNodePodPrefix) - pods.Bits()
	if bits < 0 || bits > 24 {
		return 0
	}
	return 1 << bits
}

func (k *checker) dnsAddress(services netip.Prefix) {
	const path = networking + ".dnsAddress"
	a := &k.out.Networking.DNSAddress
	if !a.IsValid() || !k.address(path, a) {
		return
	}
	last := Nth(services, 1<<(32-services.Bits())-1)
	switch {
	case !services.Contains(*a):
		k.say(path, "choose an address in it, or remove the field", "%s is not in serviceCIDR %s", a, services)
	case *a == Nth(services, 1):
		k.say(path, "choose another", "%s is the address of the Service \"kubernetes\"", a)
	case *a == services.Addr() || *a == last:
		k.say(path, "choose another", "%s is not a usable address of %s", a, services)
	}
}

// prefix checks an address range. It clears a range that is not IPv4.
func (k *checker) prefix(path string, p *netip.Prefix) {
	switch {
	case !p.IsValid():
	case !p.Addr().Is4():
		k.say(path, "", "%s: only IPv4 ranges are supported", p)
		*p = netip.Prefix{}
	case *p != p.Masked():
		k.say(path, "write "+p.Masked().String(), "%s has bits set beyond the prefix", p)
	case !unicast(p.Addr()) || p.Bits() < 8:
		k.say(path, "choose a part of 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or 100.64.0.0/10", "%s cannot be used in a cluster", p)
	}
}

// address checks an address of a machine or Service. It clears one that cannot be used.
func (k *checker) address(path string, a *netip.Addr) bool {
	switch {
	case !a.Is4():
		k.say(path, "", "%s: only IPv4 addresses are supported", a)
	case !unicast(*a):
		k.say(path, "", "%s cannot be the address of a machine", a)
	default:
		return true
	}
	*a = netip.Addr{}
	return false
}

func unicast(a netip.Addr) bool {
	return !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && !a.IsLinkLocalUnicast() && a.As4()[0] != 0 && a.As4()[0] < 240
}
