// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"slices"

	"github.com/slipway-project/slipway/internal/core/spec"
)

func (m *maker) pools() {
	pools := m.spec.Pools
	if len(pools) == 0 {
		pools = []spec.Pool{{Name: spec.DefaultPool}}
	}
	index := 0
	for i, p := range pools {
		at := spec.Element("pools", i)
		out := Pool{Name: p.Name, Labels: p.Labels}
		m.origin(at+".name", len(pools) > 1 || p.Name != spec.DefaultPool, std(""))
		m.roles(&out, p, at, len(pools))
		m.taints(&out, p, at)
		m.replacement(&out, p, at)
		m.origin(at+".labels", len(p.Labels) > 0, std(""))
		m.origin(at+".machines", len(p.Machines) > 0, std(""))
		m.origin(at+".machineLabels", len(p.MachineLabels) > 0, std(""))
		m.count(p, at)
		for k := range p.Nodes() {
			n := NodeName{Name: p.MachineName(m.spec.Name, k), Index: index}
			if len(p.Machines) > 0 {
				n.Address = p.Machines[k].Address
			}
			n.Labels = p.LabelsOf(n.Name)
			out.Nodes = append(out.Nodes, n)
			index++
		}
		m.out.Pools = append(m.out.Pools, out)
	}
}

func (m *maker) roles(out *Pool, p spec.Pool, at string, pools int) {
	standard := spec.DefaultRoles(pools)
	out.Roles = slices.Sorted(slices.Values(p.Roles))
	user := len(out.Roles) > 0 && !slices.Equal(out.Roles, standard)
	if len(out.Roles) == 0 {
		out.Roles = standard
	}
	note := "everything on the only pool"
	if pools > 1 {
		note = ""
	}
	m.origin(at+".roles", user, std(note))
}

func (m *maker) replacement(out *Pool, p spec.Pool, at string) {
	out.Replacement = cmp.Or(p.Replacement, spec.Approved)
	m.origin(at+".replacement", out.Replacement != spec.Approved, std(""))
}

func (m *maker) taints(out *Pool, p spec.Pool, at string) {
	var standard []Taint
	origin := std("")
	if out.Has(RoleControlPlane) && !out.Has(RoleWorker) {
		standard = []Taint{{Key: spec.TaintControlPlane, Effect: "NoSchedule"}}
		origin = from("the pool is no worker")
	}
	out.Taints = standard
	var said []Taint
	for _, t := range p.Taints {
		said = append(said, Taint(t))
	}
	user := m.spec.Said("spec."+at+".taints") && !slices.Equal(said, standard)
	if user {
		out.Taints = said
	}
	m.origin(at+".taints", user, origin)
}

func (m *maker) count(p spec.Pool, at string) {
	if len(p.Machines) > 0 {
		m.origin(at+".count", false, from("machines"))
		return
	}
	m.origin(at+".count", p.Nodes() != 1, std(""))
}

// Has tells whether the pool's machines have the role. It does not tell where etcd runs: see [Cluster.EtcdMembers].
func (p Pool) Has(role string) bool { return slices.Contains(p.Roles, role) }

func (c Cluster) nodes() []NodeName {
	return c.those(func(Pool) bool { return true })
}

// ControlPlanes lists the machines that run the control plane.
func (c Cluster) ControlPlanes() []NodeName {
	return c.those(func(p Pool) bool { return p.Has(RoleControlPlane) })
}

// EtcdMembers lists the machines that run etcd: those with the role, or all control planes if none has it.
func (c Cluster) EtcdMembers() []NodeName { return c.those(c.RunsEtcd) }

// RunsEtcd tells whether the machines of p run etcd.
func (c Cluster) RunsEtcd(p Pool) bool {
	if slices.ContainsFunc(c.Pools, func(q Pool) bool { return q.Has(RoleEtcd) }) {
		return p.Has(RoleEtcd)
	}
	return p.Has(RoleControlPlane)
}

// etcdOnControlPlane: every control plane has a member beside it.
func (c Cluster) etcdOnControlPlane() bool {
	return !slices.ContainsFunc(c.Pools, func(p Pool) bool { return p.Has(RoleControlPlane) && !c.RunsEtcd(p) })
}

func (c Cluster) those(match func(Pool) bool) []NodeName {
	var out []NodeName
	for _, p := range c.Pools {
		if match(p) {
			out = append(out, p.Nodes...)
		}
	}
	return out
}
