// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"cmp"
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

// Directories for the marks of completed hooks. Those below /run are gone after a boot.
const (
	hookMarks     = "/var/lib/slipway/state/hooks"
	hookBootMarks = "/run/slipway/hooks"
)

// hooked inserts the user's hooks into a finished plan. A hook before a phase needs what the phase needs, and the phase
// needs the hook. A hook after a phase needs the phase, and what needs the phase needs the hook. Hooks of a phase that this
// node does not have are omitted.
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

// graph is a plan while hooks are inserted. Its entries are in no order.
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

// hookUnit is ready when its mark exists. The mark's name contains a hash of the command: an edited command runs again.
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

// marks adds the directory of marks, which is removed with the node.
func (g *graph) marks() plan.Ref {
	dir := plan.Dir{Path: hookMarks, Mode: 0o700, Data: true}
	ref := plan.RefOf(dir)
	if !slices.ContainsFunc(g.entries, func(e plan.Entry) bool { return e.Ref == ref }) {
		g.entries = append(g.entries, plan.Entry{Ref: ref, Item: dir})
	}
	return ref
}

// nodeReady adds a precondition: the API reports this node as ready. It is queried with the kubelet's own rights.
func (g *graph) nodeReady() {
	known := plan.Precondition{
		Name: spec.PhaseNodeReady, Provider: "the kubelet and the cluster",
		Ready: plan.Probe{
			Kind: plan.ProbeExec, Contains: "True",
			Args: []string{
				binPath("kubectl"), "--kubeconfig=" + config.KubeletConf, "get", "node", g.cfg.Name,
				`--output=jsonpath={.status.conditions[?(@.type=="Ready")].status}`,
			},
		},
	}
	ref := plan.RefOf(known)
	if slices.ContainsFunc(g.entries, func(e plan.Entry) bool { return e.Ref == ref }) {
		return
	}
	g.entries = append(g.entries, plan.Entry{Ref: ref, Item: known, Needs: []plan.Ref{
		plan.RefOf(plan.Unit{Name: "kubelet"}), g.bins["kubectl"], g.confs[config.KubeletConf],
	}})
}

func outside(needs []plan.Ref, in map[plan.Ref]bool) []plan.Ref {
	return slices.DeleteFunc(slices.Clone(needs), func(r plan.Ref) bool { return in[r] })
}

// phase returns a named set of items. No item outside a set is between two items of the set, so that a hook on either side
// creates no cycle.
func (g *graph) phase(name string) map[plan.Ref]bool {
	switch name {
	case spec.PhasePrepare:
		in := map[plan.Ref]bool{}
		for _, r := range g.prepared {
			in[r] = true
		}
		return in
	case spec.PhaseFiles:
		return g.files()
	case spec.PhaseRuntime:
		return g.running(func(name string) bool { return name == "containerd" || strings.HasPrefix(name, "image-") })
	case spec.PhaseControlPlane:
		return g.running(func(name string) bool {
			return slices.Contains([]string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"}, name)
		})
	case spec.PhaseNodeReady:
		return map[plan.Ref]bool{plan.RefOf(plan.Precondition{Name: name}): true}
	default: // etcd, kubelet, kube-proxy
		return g.running(func(unit string) bool { return unit == name })
	}
}

// running returns what runs under one of the names, as a unit or as a static pod.
func (g *graph) running(match func(name string) bool) map[plan.Ref]bool {
	in := map[plan.Ref]bool{}
	for _, e := range g.entries {
		switch it := e.Item.(type) {
		case plan.Unit:
			in[e.Ref] = match(it.Name)
		case plan.StaticPod:
			in[e.Ref] = it.Component && match(it.Name)
		default:
		}
	}
	return onlyTrue(in)
}

// files returns what is created on the disk before anything runs, except what belongs to the preparation.
func (g *graph) files() map[plan.Ref]bool {
	ran, in := map[plan.Ref]bool{}, map[plan.Ref]bool{}
	for _, e := range ordered(g.entries) {
		kind := e.Item.Kind()
		ran[e.Ref] = kind == plan.KindUnit || kind == plan.KindStaticPod || slices.ContainsFunc(e.Needs, func(r plan.Ref) bool { return ran[r] && !isHook(r) })
		in[e.Ref] = !ran[e.Ref] && kind != plan.KindPrecondition && !slices.Contains(g.prepared, e.Ref) && e.Ref != plan.RefOf(plan.Dir{Path: hookMarks})
	}
	return onlyTrue(in)
}

func isHook(r plan.Ref) bool { return strings.HasPrefix(r.String(), string(plan.KindUnit)+"/hook-") }

func onlyTrue(in map[plan.Ref]bool) map[plan.Ref]bool {
	for r, is := range in {
		if !is {
			delete(in, r)
		}
	}
	return in
}

// ordered puts each entry after its needs and otherwise keeps the order, in which the entries are carried out.
func ordered(entries []plan.Entry) []plan.Entry {
	out := make([]plan.Entry, 0, len(entries))
	placed := map[plan.Ref]bool{}
	for left := entries; len(left) > 0; {
		var later []plan.Entry
		for _, e := range left {
			if slices.ContainsFunc(e.Needs, func(r plan.Ref) bool { return !placed[r] }) {
				later = append(later, e)
				continue
			}
			placed[e.Ref] = true
			out = append(out, e)
		}
		if len(later) == len(left) {
			panic("planner: a hook has created a cycle at " + later[0].Ref.String())
		}
		left = later
	}
	return out
}

func refsIn(in map[plan.Ref]bool) []plan.Ref {
	refs := make([]plan.Ref, 0, len(in))
	for r := range in {
		refs = append(refs, r)
	}
	return sortedRefs(refs)
}

func sortedRefs(refs []plan.Ref) []plan.Ref {
	return slices.SortedFunc(slices.Values(refs), func(a, b plan.Ref) int { return cmp.Compare(a.String(), b.String()) })
}

func uniqueRefs(refs []plan.Ref) []plan.Ref { return slices.Compact(sortedRefs(refs)) }
