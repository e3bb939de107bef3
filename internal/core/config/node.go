// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// ForNode is the configuration of one node: ${node.…} replaced, and what depends on the machine set according to its facts
// unless the user has decided it. The result shares nothing changeable with c.
func ForNode(c Cluster, name string, f Facts) (Node, error) {
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
	share, err := c.Share(id.Index)
	if err != nil {
		return Node{}, err
	}
	replace := strings.NewReplacer("${node.name}", name, "${node.address}", f.Address.String(), "${node.podCIDR}", share.String())
	text := func(s string) string {
		if !strings.Contains(s, "${") {
			return s
		}
		return replace.Replace(s)
	}
	for _, x := range c.components() {
		*x.Component = x.clone(text)
	}
	c.Hooks = slices.Clone(c.Hooks)
	for i := range c.Hooks {
		c.Hooks[i] = c.Hooks[i].clone(text)
	}
	c.Kubelet.apply(f)
	c.KubeProxy.adjustOOM(f)
	c.Kubelet.join(pool)
	return Node{Cluster: c, Pool: pool, Name: name, Index: id.Index, PodCIDR: share, Facts: f, Labels: id.Labels, Units: c.unitsOn(name)}, nil
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

// usable refuses an address that the cluster gives to something else.
func (c Cluster) usable(a netip.Addr) error {
	switch {
	case !a.IsValid():
		return fmt.Errorf("no address: neither the spec names one nor does the machine report one")
	case !a.Is4():
		return fmt.Errorf("address %s: only IPv4 is supported", a)
	case c.PodCIDR.Contains(a):
		return fmt.Errorf("address %s lies in networking.podCIDR %s: choose another range", a, c.PodCIDR)
	case c.ServiceCIDR.Contains(a):
		return fmt.Errorf("address %s lies in networking.serviceCIDR %s: choose another range", a, c.ServiceCIDR)
	}
	return nil
}

// apply sets what the machine decides.
func (c *Component) apply(f Facts) {
	if f.CgroupV1 {
		c.fact("failCgroupV1", false, "the machine has cgroup v1")
	}
	if f.ResolvConf != "" {
		c.fact("resolvConf", f.ResolvConf, "reported by the machine")
	}
	c.adjustOOM(f)
}

// adjustOOM: a process without CAP_SYS_RESOURCE may not lower its score, and complains each time it tries.
func (c *Component) adjustOOM(f Facts) {
	if !f.OOMScoreAdj {
		c.fact("oomScoreAdj", int64(0), "the machine may not lower it")
	}
}

// fact sets a top-level field of the configuration file, unless it is the user's or the release does not have it.
func (c *Component) fact(path string, value any, why string) {
	if _, has := c.Config[path]; !has || c.Origins[path].From == User {
		return
	}
	c.Config[path] = value
	c.Origins[path] = from(why)
}

// join adds the pool's labels and taints to what the kubelet registers. Role labels are not among them: NodeRestriction
// refuses those from a kubelet.
func (c *Component) join(p Pool) {
	if len(p.Labels) > 0 {
		const name = "node-labels"
		labels := make([]string, 0, len(p.Labels))
		for _, k := range slices.Sorted(maps.Keys(p.Labels)) {
			labels = append(labels, k+"="+p.Labels[k])
		}
		flag, origin := c.Flags[name], from("labels of pool "+p.Name)
		if len(flag.Values) > 0 { // the last one wins
			origin = flag.Origin
		}
		c.Flags[name] = Flag{Values: append([]string{strings.Join(labels, ",")}, flag.Values...), Origin: origin}
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
		more, _ := c.Config[name].([]any)
		if more == nil {
			c.Origins[name] = from("taints of pool " + p.Name)
		}
		c.Config[name] = append(taints, more...)
	}
}
