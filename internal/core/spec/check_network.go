// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"cmp"
	"net/netip"

	"github.com/slipway-project/slipway/api/cluster/v1alpha1"
)

const networking = "spec.networking"

func (k *checker) network(in v1alpha1.Networking) {
	n := &k.out.Networking
	n.PodCIDR = k.prefix(networking+".podCIDR", in.PodCIDR)
	n.ServiceCIDR = k.prefix(networking+".serviceCIDR", in.ServiceCIDR)
	pods := cmp.Or(n.PodCIDR, netip.MustParsePrefix(DefaultPodCIDR))
	services := cmp.Or(n.ServiceCIDR, netip.MustParsePrefix(DefaultServiceCIDR))

	if pods.Overlaps(services) {
		k.say(k.said(networking+".serviceCIDR", networking+".podCIDR"), "choose ranges apart",
			"the ranges of services %s and pods %s overlap", services, pods)
	}
	// The API server takes no more than 20 bits; a range needs the first, the tenth and some more addresses.
	if bits := services.Bits(); bits < 12 || bits > 27 {
		k.say(networking+".serviceCIDR", "choose a prefix from /12 to /27", "%s is too %s for services", services, size(bits < 12))
	}
	k.shares(in, pods)
	k.dns(in, services)
	k.domain(in)
}

// shares checks that the pod range can be cut into node ranges.
func (k *checker) shares(in v1alpha1.Networking, pods netip.Prefix) {
	const path = networking + ".nodePodPrefix"
	share := DefaultNodePodPrefix
	if in.NodePodPrefix != nil {
		share = *in.NodePodPrefix
		k.out.Networking.NodePodPrefix = share
	}
	at := k.said(path, networking+".podCIDR")
	const smallest, most = 28, 16
	switch {
	case share > smallest || share < 8:
		k.say(path, "choose a prefix length from 8 to 28", "/%d is no sensible share for one node", share)
	case share < pods.Bits():
		k.say(at, "choose a longer nodePodPrefix or a larger podCIDR", "a node's share /%d is larger than the pod range %s", share, pods)
	case share-pods.Bits() > most:
		k.say(at, "choose a shorter nodePodPrefix or a smaller podCIDR", "%s holds more than 65536 shares of /%d", pods, share)
	}
}

// room is how many nodes the pod range has shares for; 0 if that cannot be told.
func (k *checker) room() int {
	n := k.out.Networking
	pods := cmp.Or(n.PodCIDR, netip.MustParsePrefix(DefaultPodCIDR))
	bits := cmp.Or(n.NodePodPrefix, DefaultNodePodPrefix) - pods.Bits()
	if bits < 0 || bits > 24 {
		return 0
	}
	return 1 << bits
}

func (k *checker) dns(in v1alpha1.Networking, services netip.Prefix) {
	const path = networking + ".dnsAddress"
	if !k.out.Said(path) {
		return
	}
	a := k.address(path, in.DNSAddress)
	if !a.IsValid() {
		return
	}
	k.out.Networking.DNSAddress = a
	last := Nth(services, 1<<(32-services.Bits())-1)
	switch {
	case !services.Contains(a):
		k.say(path, "choose one of it, or leave the field away", "%s lies outside serviceCIDR %s", a, services)
	case a == Nth(services, 1):
		k.say(path, "choose another", "%s is the address of the Service \"kubernetes\"", a)
	case a == services.Addr() || a == last:
		k.say(path, "choose another", "%s is no usable address of %s", a, services)
	}
}

func (k *checker) domain(in v1alpha1.Networking) {
	const path, longest = networking + ".clusterDomain", 200
	if !k.out.Said(path) {
		return
	}
	k.out.Networking.ClusterDomain = in.ClusterDomain
	if !isDomain(in.ClusterDomain) || len(in.ClusterDomain) > longest {
		k.say(path, "write lower-case DNS labels joined by dots, without a dot at the end", "%s is not a DNS domain", show(in.ClusterDomain))
	}
}

func (k *checker) prefix(path, text string) netip.Prefix {
	if !k.out.Said(path) {
		return netip.Prefix{}
	}
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		k.say(path, "write an address range such as 10.244.0.0/16", "%s is not an address range", show(text))
		return netip.Prefix{}
	case !p.Addr().Is4():
		k.say(path, "", "%s: only IPv4 ranges are supported", text)
		return netip.Prefix{}
	case p != p.Masked():
		k.say(path, "write "+p.Masked().String(), "%s has bits set beyond the prefix", text)
	case !unicast(p.Addr()) || p.Bits() < 8:
		k.say(path, "choose a part of 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or 100.64.0.0/10", "%s is no range for a cluster", text)
	}
	return p
}

func (k *checker) address(path, text string) netip.Addr {
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		k.say(path, "write an address such as 10.0.0.4", "%s is not an address", show(text))
	case !a.Is4():
		k.say(path, "", "%s: only IPv4 addresses are supported", text)
	case !unicast(a):
		k.say(path, "", "%s is no address of a machine", text)
	default:
		return a
	}
	return netip.Addr{}
}

func unicast(a netip.Addr) bool {
	return !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && !a.IsLinkLocalUnicast() && a.As4()[0] != 0 && a.As4()[0] < 240
}

// said is the first of the paths that the document holds, or the first.
func (k *checker) said(paths ...string) string {
	for _, p := range paths {
		if k.out.Said(p) {
			return p
		}
	}
	return paths[0]
}

func size(large bool) string {
	if large {
		return "large"
	}
	return "small"
}
