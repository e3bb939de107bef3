// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
	"slices"
)

// WithNode is the cluster with one node as its record says: in this pool, with this address and this share of the pod range,
// whether the spec names it or not. The result shares nothing changeable with c.
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

// Keeping is the cluster with the shares of the pod range that its nodes have already: a node keeps its own whatever comes before
// it in the spec, and new ones take the lowest that are free.
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
