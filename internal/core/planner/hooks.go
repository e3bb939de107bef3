// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// Where hooks leave their marks: what is below /run is gone after a boot.
const (
	hookMarks     = "/var/lib/slipway/state/hooks"
	hookBootMarks = "/run/slipway/hooks"
)

// hooked puts the user's hooks into a finished plan. A hook before a phase needs what the phase needs, and the phase needs the hook;
// one after a phase needs the phase, and what needs the phase needs the hook. A phase that this node does not have has no hooks.
func (n *node) hooked(p plan.Plan) plan.Plan {
	g := &graph{node: n, entries: slices.Clone(p.Entries), prepared: n.prepared, last: map[string]plan.Ref{}}
	for _, h := range n.cfg.Cluster.Hooks {
		if len(h.Roles) == 0 || slices.ContainsFunc(h.Roles, n.has) {
			g.hook(h)
		}
	}
	if len(g.last) > 0 {
		p.Entries = ordered(g.entries)
	}
	return p
}

// graph is a plan while hooks are put into it. Its entries are in no order.
type graph struct {
	*node
	entries  []plan.Entry
	prepared []plan.Ref
	last     map[string]plan.Ref // the last hook after each phase: they run one after the other
}

func (g *graph) hook(h spec.Hook) {
	if h.After == spec.PhaseNodeReady {
		g.nodeReady()
	}
	in := g.phase(h.Before + h.After)
	if len(in) == 0 {
		return
	}
	e := plan.Entry{Item: hookUnit(h), Deadline: h.Timeout + 30*time.Second}
	e.Ref = plan.RefOf(e.Item)
	if !h.EveryBoot {
		e.Needs = append(e.Needs, g.marks())
	}
	if h.After != "" {
		e.Needs = append(e.Needs, refsIn(in)...)
		if earlier, ok := g.last[h.After]; ok {
			e.Needs = append(e.Needs, earlier)
		}
	}
	for i, other := range g.entries {
		switch {
		case h.Before != "" && in[other.Ref]:
			e.Needs = append(e.Needs, outside(other.Needs, in)...)
			g.entries[i].Needs = append(slices.Clone(other.Needs), e.Ref)
		case h.After != "" && !in[other.Ref] && len(outside(other.Needs, in)) < len(other.Needs) && !g.isHookAfter(other.Ref, h.After):
			g.entries[i].Needs = append(slices.Clone(other.Needs), e.Ref)
		}
	}
	e.Needs = uniqueRefs(e.Needs)
	g.entries = append(g.entries, e)
	g.last[h.After] = e.Ref
}

func (g *graph) isHookAfter(r plan.Ref, phase string) bool { return g.last[phase] == r }

// hookUnit is asked by its mark, whose name holds what it does: an edited command is another hook.
func hookUnit(h spec.Hook) plan.Unit {
	dir := hookMarks
	if h.EveryBoot {
		dir = hookBootMarks
	}
	sum := sha256.Sum256([]byte(strings.Join(h.Command, "\x00")))
	mark := path.Join(dir, h.Name+"."+hex.EncodeToString(sum[:8]))
	return plan.Unit{
		Name: "hook-" + h.Name, Oneshot: true, KillChildren: true,
		Args:  append([]string{config.SlipwayBinary, taskCommand, "hook", mark, h.Timeout.String()}, h.Command...),
		Ready: plan.Probe{Kind: plan.ProbeFile, Path: mark},
	}
}

// marks is the folder of marks, which goes with the node.
func (g *graph) marks() plan.Ref {
	dir := plan.Dir{Path: hookMarks, Mode: 0o700, Data: true}
	ref := plan.RefOf(dir)
	if !slices.ContainsFunc(g.entries, func(e plan.Entry) bool { return e.Ref == ref }) {
		g.entries = append(g.entries, plan.Entry{Ref: ref, Item: dir})
	}
	return ref
}

// nodeReady asks the API what it thinks of this node, with the kubelet's own rights.
func (g *graph) nodeReady() {
	gate := plan.Precondition{
		Name: spec.PhaseNodeReady, Provider: "the kubelet and the cluster",
		Ready: plan.Probe{
			Kind: plan.ProbeExec, Contains: "True",
			Args: []string{
				binPath("kubectl"), "--kubeconfig=" + config.KubeletConf, "get", "node", g.cfg.Name,
				`--output=jsonpath={.status.conditions[?(@.type=="Ready")].status}`,
			},
		},
	}
	ref := plan.RefOf(gate)
	if slices.ContainsFunc(g.entries, func(e plan.Entry) bool { return e.Ref == ref }) {
		return
	}
	g.entries = append(g.entries, plan.Entry{Ref: ref, Item: gate, Needs: []plan.Ref{
		plan.RefOf(plan.Unit{Name: "kubelet"}), g.bins["kubectl"], g.confs[config.KubeletConf],
	}})
}

func outside(needs []plan.Ref, in map[plan.Ref]bool) []plan.Ref {
	return slices.DeleteFunc(slices.Clone(needs), func(r plan.Ref) bool { return in[r] })
}
