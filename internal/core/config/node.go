// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// ForNode returns the configuration of one node: ${node.…} is replaced, and what depends on the machine is set by its
// facts unless the user has set it. The result shares nothing mutable with c.
func ForNode(c Cluster, name string, f machine.Facts) (Node, error) {
	pool, id, ok := c.find(name)
	if !ok {
		return Node{}, fmt.Errorf("configure node %q: cluster %q has no such machine", name, c.Name)
	}
	if id.Address.IsValid() {
		f.Address = id.Address
	}
	if err := c.usable(f.Address); err != nil {
		return Node{}, fmt.Errorf("configure node %q: %w", name, err)
	}
	podCIDR, err := c.NodePodCIDR(id.Index)
	if err != nil {
		return Node{}, err
	}
	replace := strings.NewReplacer("${node.name}", name, "${node.address}", f.Address.String(), "${node.podCIDR}", podCIDR.String())
	text := func(s string) string {
		if !strings.Contains(s, "${") {
			return s
		}
		return replace.Replace(s)
	}
	c.Origins = maps.Clone(c.Origins)
	for _, x := range components(&c.Components) {
		*x.Component = cloneComponent(*x.Component, text)
	}
	c.Hooks = slices.Clone(c.Hooks)
	for i := range c.Hooks {
		c.Hooks[i].Command = slices.Clone(c.Hooks[i].Command)
		for j, word := range c.Hooks[i].Command {
			c.Hooks[i].Command[j] = text(word)
		}
	}
	c.apply(f)
	c.register(pool)
	units := slices.DeleteFunc(slices.Clone(c.Units), func(u spec.Unit) bool { return !slices.Contains(u.Placed, name) })
	return Node{Cluster: c, Pool: pool, Name: name, Index: id.Index, PodCIDR: podCIDR, Facts: f, Labels: id.Labels, Units: units}, nil
}

func (c Cluster) find(name string) (Pool, NodeName, bool) {
	for _, p := range c.Pools {
		for _, n := range p.Nodes {
			if n.Name == name {
				return p, n, true
			}
		}
	}
	return Pool{}, NodeName{}, false
}

// usable refuses an address that the cluster uses for something else.
func (c Cluster) usable(a netip.Addr) error {
	switch {
	case !a.IsValid():
		return fmt.Errorf("no address: neither the spec nor the machine names one")
	case !a.Is4():
		return fmt.Errorf("address %s: only IPv4 is supported", a)
	case c.PodCIDR.Contains(a):
		return fmt.Errorf("address %s is in networking.podCIDR %s: choose another range", a, c.PodCIDR)
	case c.ServiceCIDR.Contains(a):
		return fmt.Errorf("address %s is in networking.serviceCIDR %s: choose another range", a, c.ServiceCIDR)
	}
	return nil
}

// NodePodCIDR returns the pod CIDR of the node with this index.
func (c Cluster) NodePodCIDR(index int) (netip.Prefix, error) {
	bits := c.NodePodPrefix - c.PodCIDR.Bits()
	if bits < 0 || index < 0 || bits < 31 && index >= 1<<bits {
		return netip.Prefix{}, fmt.Errorf("assign pod CIDR to node %d: %s holds %d pod CIDRs of /%d", index, c.PodCIDR, 1<<max(bits, 0), c.NodePodPrefix)
	}
	return netip.PrefixFrom(spec.Nth(c.PodCIDR, index<<(32-c.NodePodPrefix)), c.NodePodPrefix), nil
}

// apply sets what the machine's facts decide.
func (c *Cluster) apply(f machine.Facts) {
	// fact sets a top-level field of a configuration file, unless the user has set it or the release does not have it.
	fact := func(name string, config map[string]any, field string, value any, why string) {
		at := "spec.components." + name + ".config." + field
		if _, has := config[field]; has && c.Origins[at].From != User {
			config[field] = value
			c.Origins[at] = from(why)
		}
	}
	if f.CgroupV1 {
		fact("kubelet", c.Kubelet.Config, "failCgroupV1", false, "the machine has cgroup v1")
	}
	if !f.UpstreamDNS {
		fact("kubelet", c.Kubelet.Config, "resolvConf", ResolvConfFile, "the machine's resolv.conf names no server that pods can ask")
	}
	if !f.OOMScoreAdj { // a process without CAP_SYS_RESOURCE cannot lower its score, and logs an error at each attempt
		fact("kubelet", c.Kubelet.Config, "oomScoreAdj", int64(0), "the machine may not lower it")
		fact("kubeProxy", c.KubeProxy.Config, "oomScoreAdj", int64(0), "the machine may not lower it")
	}
}

// register adds the pool's labels and taints to what the kubelet registers. Role labels are not among them: the admission
// plugin NodeRestriction refuses those from a kubelet.
func (c *Cluster) register(p Pool) {
	if len(p.Labels) > 0 {
		const name = "node-labels"
		labels := make([]string, 0, len(p.Labels))
		for _, k := range slices.Sorted(maps.Keys(p.Labels)) {
			labels = append(labels, k+"="+p.Labels[k])
		}
		user := c.Kubelet.Flags[name]
		if len(user) == 0 {
			c.Origins[spec.Child("spec.components.kubelet.flags", name)] = from("labels of pool " + p.Name)
		}
		c.Kubelet.Flags[name] = append(spec.Values{strings.Join(labels, ",")}, user...) // the last value of a label wins
	}
	if len(p.Taints) > 0 {
		const name = "registerWithTaints"
		taints := make([]any, 0, len(p.Taints))
		for _, t := range p.Taints {
			taint := map[string]any{"key": t.Key, "effect": t.Effect}
			if t.Value != "" {
				taint["value"] = t.Value
			}
			taints = append(taints, taint)
		}
		user, _ := c.Kubelet.Config[name].([]any)
		if user == nil {
			c.Origins["spec.components.kubelet.config."+name] = from("taints of pool " + p.Name)
		}
		c.Kubelet.Config[name] = append(taints, user...)
	}
}

// WithNode returns the cluster with one node as its record says: in this pool, with this address and this index, whether
// the spec lists it or not. The result shares nothing mutable with c.
func (c Cluster) WithNode(pool, name string, address netip.Addr, index int) (Cluster, error) {
	c.Pools = slices.Clone(c.Pools)
	found := false
	_, known, listed := c.find(name)
	for i, p := range c.Pools {
		p.Nodes = slices.DeleteFunc(slices.Clone(p.Nodes), func(n NodeName) bool { return n.Name == name })
		if p.Name == pool {
			p.Nodes = append(p.Nodes, NodeName{Name: name, Address: address, Index: index, Labels: known.Labels, Unlisted: !listed || known.Unlisted})
			found = true
		}
		c.Pools[i] = p
	}
	if !found {
		return Cluster{}, fmt.Errorf("configure node %q: cluster %q has no pool %q", name, c.Name, pool)
	}
	return c, nil
}

// Keeping returns the cluster with the indexes that its nodes have already: a node keeps its pod CIDR whatever precedes it
// in the spec, and new nodes take the lowest free indexes.
func (c Cluster) Keeping(have map[string]int) Cluster {
	taken := map[int]bool{}
	for _, index := range have {
		taken[index] = true
	}
	next := 0
	c.Pools = slices.Clone(c.Pools)
	for i, p := range c.Pools {
		p.Nodes = slices.Clone(p.Nodes)
		for k, n := range p.Nodes {
			if index, ok := have[n.Name]; ok {
				p.Nodes[k].Index = index
				continue
			}
			for taken[next] {
				next++
			}
			p.Nodes[k].Index = next
			next++
		}
		c.Pools[i] = p
	}
	return c
}
