// SPDX-License-Identifier: Apache-2.0

package spec

import "net/netip"

// Defaults of the fields that are checked against each other. Package config fills them in; they stand here because
// "the pod range overlaps the service range" has to be found although the user wrote only one of the two.
const (
	DefaultPodCIDR       = "10.244.0.0/16"
	DefaultNodePodPrefix = 24
	DefaultServiceCIDR   = "10.96.0.0/16"
	DefaultClusterDomain = "cluster.local"
	DefaultPool          = "main"
	DNSIndex             = 10 // the cluster DNS has the tenth address of the service range, as with kubeadm
)

// The roles of a pool.
const (
	ControlPlane = "control-plane"
	Worker       = "worker"
	Etcd         = "etcd"
)

// The forms of the control plane.
const (
	HostUnits  = "HostUnits"
	StaticPods = "StaticPods"
)

// TaintControlPlane keeps ordinary pods off machines that are control plane only.
const TaintControlPlane = "node-role.kubernetes.io/control-plane"

// DefaultRoles of a pool that says none: everything if it is the only pool, otherwise worker.
func DefaultRoles(pools int) []string {
	if pools <= 1 {
		return []string{ControlPlane, Worker}
	}
	return []string{Worker}
}

// Nodes is the number of machines of the pool.
func (p Pool) Nodes() int {
	switch {
	case len(p.Machines) > 0:
		return len(p.Machines)
	case p.Count > 0:
		return p.Count
	default:
		return 1
	}
}

// Nth is the n-th address of an IPv4 range, counted from 0. It may lie beyond the range's end: the caller knows.
func Nth(p netip.Prefix, n int) netip.Addr {
	b := p.Addr().As4()
	v := (uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])) + uint32(n)
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}
