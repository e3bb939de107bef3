// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"maps"
	"slices"

	"github.com/slipway-project/slipway/internal/core/placement"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// What every machine knows of itself, for units: NAME=VALUE lines, and each fact as a file of its own.
const (
	FactsFile   = "/run/slipway/facts.env"
	FactsFolder = "/run/slipway/facts"
)

// LabelPool is the label that each machine has of its pool, for placement.
const LabelPool = "slipway.dev/pool"

// Unit is a process of the user's own. Nothing in it is a template any more.
type Unit struct {
	spec.Unit
	Why string // why it is placed nowhere
}

func (m *maker) units() {
	for _, u := range m.spec.Units {
		m.out.Units = append(m.out.Units, Unit{Unit: u})
	}
	slices.SortStableFunc(m.out.Units, func(a, b Unit) int { return cmp.Compare(a.Name, b.Name) })
	m.origin("units", len(m.spec.Units) > 0, std(""))
}

func (c Cluster) unitsOn(node string) []Unit {
	return slices.DeleteFunc(slices.Clone(c.Units), func(u Unit) bool { return !slices.Contains(u.Placed, node) })
}

// Machines are the cluster's machines as placement sees them.
func (c Cluster) Machines() []placement.Machine {
	var out []placement.Machine
	for _, p := range c.Pools {
		for _, n := range p.Nodes {
			m := placement.Machine{Name: n.Name, Labels: map[string]string{}, Runs: c.runs(p), Guest: n.Unlisted}
			maps.Copy(m.Labels, p.Labels)
			maps.Copy(m.Labels, n.Labels)
			for _, role := range p.Roles {
				m.Labels["node-role.kubernetes.io/"+role] = ""
			}
			m.Labels["kubernetes.io/hostname"], m.Labels[LabelPool] = n.Name, p.Name
			out = append(out, m)
		}
	}
	return out
}

// runs are the components of the pool's machines.
func (c Cluster) runs(p Pool) []string {
	out := []string{spec.ComponentContainerd, spec.ComponentKubelet, spec.ComponentKubeProxy}
	if c.RunsEtcd(p) {
		out = append(out, spec.ComponentEtcd)
	}
	if p.Has(RoleControlPlane) {
		return append(out, spec.ComponentAPIServer, spec.ComponentControllerManager, spec.ComponentScheduler)
	}
	return append(out, spec.ComponentBalancer)
}

func (p *printer) units(c Cluster) {
	o := c.Origins["units"]
	if len(c.Units) == 0 {
		p.raw(1, "units: [] "+o.comment())
		return
	}
	p.raw(1, "units: "+o.comment())
	for _, u := range c.Units {
		p.raw(2, "- name: "+flow(u.Name, false)+" "+o.comment())
		on := map[string]any{}
		for k, values := range u.On {
			on[k] = normal(escaped(values))
		}
		env := map[string]any{}
		for k, v := range u.Env {
			env[k] = placement.Escape(v)
		}
		stop := ""
		if u.StopTimeout > 0 {
			stop = u.StopTimeout.String()
		}
		for _, f := range []struct {
			key   string
			value any
			said  bool
		}{
			{"exec", normal(escaped(u.Exec)), true},
			{"env", env, len(env) > 0},
			{"directory", placement.Escape(u.Dir), u.Dir != ""},
			{"ready", readyValue(u.Ready), u.Ready != spec.UnitReady{}},
			{"facts", normal(u.Facts), len(u.Facts) > 0},
			{"stopTimeout", stop, stop != ""},
			{"on", on, len(on) > 0},
			{"with", normal(escaped(u.With)), len(u.With) > 0},
			{"conflicts", normal(escaped(u.Conflicts)), len(u.Conflicts) > 0},
			{"global", u.Global, u.Global},
			{"pin", placement.Escape(u.Pin), u.Pin != ""},
			{"replaces", normal(escaped(u.Replaces)), len(u.Replaces) > 0},
		} {
			if f.said {
				p.raw(3, keyText(f.key)+": "+flow(f.value, false)+" "+o.comment())
			}
		}
		if len(u.Placed) > 0 {
			p.value(3, "placed", normal(u.Placed), from("its rules"))
		}
	}
}

func readyValue(r spec.UnitReady) map[string]any {
	out := map[string]any{}
	for key, v := range map[string]string{"http": r.HTTP, "tcp": r.TCP, "file": r.File} {
		if v != "" {
			out[key] = placement.Escape(v)
		}
	}
	if r.Notify {
		out["notify"] = true
	}
	return out
}

func escaped(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = placement.Escape(s)
	}
	return out
}
