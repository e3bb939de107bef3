// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"slices"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// userPrefix separates the names of the user's units from the names of Slipway's.
const userPrefix = "user-"

// UserUnit returns the name that a unit of the spec has in a plan.
func UserUnit(name string) string { return userPrefix + name }

// userUnits come last, and nothing waits for them. Each starts after the units that it depends on, and after the packages,
// accounts and directories of the operating system.
func (n *node) userUnits() {
	placed := map[string]spec.Unit{}
	for _, u := range n.cfg.Units {
		placed[u.Name] = u
	}
	done := map[string]plan.Ref{}
	for _, u := range n.cfg.Units {
		n.userUnit(u, placed, done)
	}
}

func (n *node) userUnit(u spec.Unit, placed map[string]spec.Unit, done map[string]plan.Ref) plan.Ref {
	if ref, ok := done[u.Name]; ok {
		return ref
	}
	needs := slices.Clone(n.prepared)
	for _, name := range u.With { // without cycles: the spec was checked
		if other, ok := placed[name]; ok {
			needs = append(needs, n.userUnit(other, placed, done))
		} else if ref := plan.RefOf(plan.Unit{Name: name}); n.contains(ref) {
			needs = append(needs, ref)
		}
	}
	for _, fact := range u.Facts {
		needs = append(needs, n.fact(fact))
	}
	unit := plan.Unit{
		Name: UserUnit(u.Name), Args: u.Exec, Dir: u.Directory, EnvFile: config.FactsFile, Ready: userProbe(u.Ready), StopTimeout: u.StopTimeout, KillChildren: true,
	}
	for _, k := range sorted(u.Env) {
		unit.Env = append(unit.Env, k+"="+u.Env[k])
	}
	done[u.Name] = n.Add(unit, needs...)
	return done[u.Name]
}

// fact adds a precondition: the machine knows the fact.
func (n *node) fact(name string) plan.Ref {
	known := plan.Precondition{
		Name: "fact-" + name, Provider: "the machine, which does not know " + name + " yet: " + factHint(name),
		Ready: plan.Probe{Kind: plan.ProbeFile, Path: config.FactsDirectory + "/" + name},
	}
	if ref := plan.RefOf(known); n.contains(ref) {
		return ref
	}
	return n.Add(known)
}

func userProbe(r spec.UnitReady) plan.Probe {
	switch {
	case r.HTTP != "":
		return plan.Probe{Kind: plan.ProbeHTTP, URL: r.HTTP}
	case r.TCP != "":
		return plan.Probe{Kind: plan.ProbeTCP, Address: r.TCP}
	case r.File != "":
		return plan.Probe{Kind: plan.ProbeFile, Path: r.File}
	case r.Notify:
		return plan.Probe{Kind: plan.ProbeNotify}
	}
	return plan.Probe{}
}

// factHint tells an operator what to check.
func factHint(fact string) string {
	switch fact {
	case "DEFAULT_IPV4":
		return "it has no default route, or the route's interface has no address"
	case "ZONE":
		return "write it to /etc/slipway/zone there"
	}
	return "see the facts in " + config.FactsFile + " there"
}
