// SPDX-License-Identifier: Apache-2.0

package config

import "github.com/slipway-project/slipway/internal/core/spec"

func (p *printer) pools(c Cluster) {
	p.raw(1, "pools:")
	for i, pool := range c.Pools {
		origin := func(field string) Origin { return c.Origins[spec.Element("pools", i)+"."+field] }
		p.raw(2, "- name: "+flow(pool.Name, false)+" "+origin("name").comment())
		p.value(3, "roles", normal(pool.Roles), origin("roles"))
		p.value(3, "count", len(pool.Nodes), origin("count"))
		labels := make(map[string]any, len(pool.Labels))
		for k, v := range pool.Labels {
			labels[k] = v
		}
		p.tree(3, "labels", labels, origin("labels"), nil)
		p.rows(3, "taints", taintRows(pool.Taints), origin("taints"))
		p.value(3, "replacement", pool.Replacement, origin("replacement"))
		p.rows(3, "machines", machineRows(pool.Nodes), origin("machines"))
		p.value(3, "machineLabels", machineLabels(pool.Nodes), origin("machineLabels"))
	}
}

// rows writes a list of small objects, one per line.
func (p *printer) rows(level int, key string, rows []string, o Origin) {
	if len(rows) == 0 {
		p.raw(level, key+": [] "+o.comment())
		return
	}
	p.raw(level, key+": "+o.comment())
	for _, r := range rows {
		p.raw(level+1, "- "+r)
	}
}

func taintRows(taints []Taint) []string {
	var rows []string
	for _, t := range taints {
		value := ""
		if t.Value != "" {
			value = ", value: " + flow(t.Value, true)
		}
		rows = append(rows, "{key: "+flow(t.Key, true)+value+", effect: "+flow(t.Effect, true)+"}")
	}
	return rows
}

// machineRows leaves out machines that are made to order: their pool's count stands for them.
func machineRows(nodes []NodeName) []string {
	var rows []string
	for _, n := range nodes {
		if n.Address.IsValid() {
			labels := ""
			if len(n.Labels) > 0 {
				labels = ", labels: " + flow(object(n.Labels), true)
			}
			rows = append(rows, "{name: "+flow(n.Name, true)+", address: "+n.Address.String()+labels+"}")
		}
	}
	return rows
}

// machineLabels are those of machines that have no row.
func machineLabels(nodes []NodeName) map[string]any {
	out := map[string]any{}
	for _, n := range nodes {
		if !n.Address.IsValid() && len(n.Labels) > 0 {
			out[n.Name] = object(n.Labels)
		}
	}
	return out
}

func object(m map[string]string) map[string]any {
	out := make(map[string]any, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}

func (p *printer) addOns(c Cluster) {
	if len(c.AddOns) == 0 {
		p.raw(1, "addOns: [] "+c.Origins["addOns"].comment())
		return
	}
	p.raw(1, "addOns: "+c.Origins["addOns"].comment())
	for _, a := range c.AddOns {
		p.raw(2, "- name: "+flow(a.Name, false)+" "+c.Origins["addOns"].comment())
		p.value(3, "manifest", a.Manifest, c.Origins["addOns"])
	}
}
