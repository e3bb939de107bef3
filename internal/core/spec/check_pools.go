// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/api/cluster/v1alpha1"
)

const (
	maxNodes    = 5000 // Kubernetes' own limit
	maxHostname = 63
)

// fleet is what must be unique over all pools, and who has it.
type fleet struct {
	pools, names map[string]string
	addresses    map[netip.Addr]string
}

func (k *checker) pools(in []v1alpha1.Pool) {
	const path = "spec.pools"
	if k.out.Said(path) && len(in) == 0 {
		k.say(path, "leave the field away for one machine that is everything", "is empty")
	}
	seen := fleet{pools: map[string]string{}, names: map[string]string{}, addresses: map[netip.Addr]string{}}
	total := 0
	for i, p := range in {
		at := Element(path, i)
		k.uniqueLabel(at, p.Name, seen.pools)
		pool := Pool{Name: p.Name, Roles: p.Roles, Labels: p.Labels}
		k.roles(at, p.Roles)
		k.machines(at, p, &pool, seen)
		k.count(at, p, &pool)
		k.labels(at+".labels", p.Labels)
		k.machineLabels(at+".machineLabels", p, &pool)
		pool.Taints = k.taints(at+".taints", p.Taints, pool, len(in))
		k.replacement(at, p, &pool, len(in))
		k.out.Pools = append(k.out.Pools, pool)
		total += pool.Nodes()
	}
	k.generatedNames(seen)
	if room := k.room(); room > 0 && total > room {
		k.say(k.said(networking+".nodePodPrefix", networking+".podCIDR", path), "choose a larger podCIDR or a longer nodePodPrefix",
			"the pod range has shares for %d nodes, and there are %d", room, total)
	}
	if total > maxNodes {
		k.say(path, "make several clusters", "%d machines are more than Kubernetes' limit of %d", total, maxNodes)
	}
	k.quorums()
}

// How the machines of a pool are replaced.
const (
	Approved  = "Approved"
	ByAddress = "ByAddress"
)

func (k *checker) replacement(at string, p v1alpha1.Pool, pool *Pool, pools int) {
	path := at + ".replacement"
	if p.Replacement == "" || !k.oneOf(path, "way of replacement", p.Replacement, Approved, ByAddress) {
		return
	}
	pool.Replacement = p.Replacement
	if p.Replacement == ByAddress && (slices.Contains(p.Roles, ControlPlane) || slices.Contains(p.Roles, Etcd) || len(p.Roles) == 0 && pools == 1) {
		k.say(path, "use it for a pool of workers only", "the address alone would make a control plane of a machine, with the keys of all CAs")
	}
}

func (k *checker) roles(at string, roles []string) {
	seen := map[string]bool{}
	for i, r := range roles {
		path := Element(at+".roles", i)
		if !k.oneOf(path, "role", r, ControlPlane, Worker, Etcd) {
			k.unknownRole = true
		}
		if seen[r] {
			k.say(path, "remove one", "%s is given twice", show(r))
		}
		seen[r] = true
	}
	if k.out.Said(at+".roles") && len(roles) == 0 {
		k.say(at+".roles", "leave the field away for the default", "is empty")
	}
}

func (k *checker) count(at string, p v1alpha1.Pool, pool *Pool) {
	if p.Count == nil {
		return
	}
	pool.Count = *p.Count
	switch {
	case *p.Count < 1 || *p.Count > maxNodes:
		k.say(at+".count", fmt.Sprintf("choose 1 to %d, or remove the pool", maxNodes), "%d is no number of machines", *p.Count)
		pool.Count = 0
	case len(p.Machines) > 0 && len(p.Machines) != *p.Count:
		k.say(at+".count", "leave count away: it is the number of machines listed", "%d, but %d machines are listed", *p.Count, len(p.Machines))
	}
}

func (k *checker) machines(at string, p v1alpha1.Pool, pool *Pool, seen fleet) {
	pods := cmp.Or(k.out.Networking.PodCIDR, netip.MustParsePrefix(DefaultPodCIDR))
	services := cmp.Or(k.out.Networking.ServiceCIDR, netip.MustParsePrefix(DefaultServiceCIDR))
	for i, m := range p.Machines {
		path := Element(at+".machines", i)
		pool.Machines = append(pool.Machines, Machine{Name: m.Name, Labels: m.Labels})
		k.labels(path+".labels", m.Labels)
		if !k.out.Said(path + ".name") {
			k.missing(path, "name", "")
		} else if !isDomain(m.Name) || len(m.Name) > maxHostname {
			k.say(path+".name", labelHint, "%s is not a host name", show(m.Name))
		} else if notOfOne(m.Name) {
			k.say(path+".name", "choose another", "%s is not the name of one machine: a certificate for it would be good for others", show(m.Name))
		} else {
			unique(k, path+".name", m.Name, path, seen.names)
		}
		if !k.out.Said(path + ".address") {
			k.missing(path, "address", "")
			continue
		}
		a := k.address(path+".address", m.Address)
		if !a.IsValid() {
			continue
		}
		pool.Machines[i].Address = a
		unique(k, path+".address", a, path, seen.addresses)
		for name, r := range map[string]netip.Prefix{"podCIDR": pods, "serviceCIDR": services} {
			if r.Contains(a) {
				k.say(path+".address", "choose another range for the cluster", "%s lies in %s %s", a, name, r)
			}
		}
	}
}

// notOfOne tells of names under which clients look for something else than this machine.
func notOfOne(name string) bool {
	first, rest, _ := strings.Cut(name, ".")
	return first == "localhost" || first == "kubernetes" && (rest == "" || rest == "default" || strings.HasPrefix(rest, "default."))
}

func unique[T comparable](k *checker, path string, value T, owner string, seen map[T]string) {
	if other, ok := seen[value]; ok {
		k.say(path, "", "%v is %s's too", value, other)
		return
	}
	seen[value] = owner
}

// generatedNames checks the names that machines get from their pool.
func (k *checker) generatedNames(seen fleet) {
	for i, p := range k.out.Pools {
		at := Element("spec.pools", i)
		if len(p.Machines) > 0 || !isLabel(p.Name) {
			continue
		}
		for n := range p.Nodes() {
			name := fmt.Sprintf("%s-%s-%d", k.out.Name, p.Name, n)
			if len(name) > maxHostname {
				k.say(at+".name", "shorten the pool's or the cluster's name", "the machine's name %s would be longer than %d characters", name, maxHostname)
				break
			}
			if other, ok := seen.names[name]; ok {
				k.say(at+".name", "rename the pool or that machine", "the machine's name %s is %s's already", name, other)
			}
		}
	}
}

// quorums: etcd agrees by majority, so an even number of members fails as soon as one less would.
func (k *checker) quorums() {
	pools := k.out.Pools
	if len(pools) == 0 || k.above["spec.pools"] || k.unknownRole {
		return // what was refused may have been a control plane
	}
	controlPlanes, members, without := 0, 0, 0
	for _, p := range pools {
		has := p.has(len(pools))
		if has(ControlPlane) {
			controlPlanes += p.Nodes()
		}
		if has(Etcd) {
			members += p.Nodes()
		} else if has(ControlPlane) {
			without += p.Nodes()
		}
	}
	if controlPlanes == 0 {
		k.say("spec.pools", "give one pool the role control-plane", "no pool is a control plane")
	} else {
		k.quorum("control planes", controlPlanes)
	}
	if members == 0 || members == controlPlanes && without == 0 {
		return
	}
	k.quorum("etcd members", members)
	for i, p := range pools {
		if without > 0 && p.has(len(pools))(Etcd) && len(p.Machines) == 0 {
			k.say(Element("spec.pools", i), "list machines with their addresses", "etcd apart from a control plane has to be found by its API server")
		}
	}
}

// has asks for the pool's roles, the default ones included.
func (p Pool) has(pools int) func(role string) bool {
	roles := p.Roles
	if len(roles) == 0 {
		roles = DefaultRoles(pools)
	}
	return func(role string) bool { return slices.Contains(roles, role) }
}

func (k *checker) quorum(what string, n int) {
	switch {
	case n > 7:
		k.say("spec.pools", "choose 1, 3, 5 or 7", "%d %s: every write waits for a majority, so more than 7 only slow it", n, what)
	case n%2 == 0:
		k.say("spec.pools", "choose 1, 3, 5 or 7", "%d %s survive no more failures than %d", n, what, n-1)
	}
}
