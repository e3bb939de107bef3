// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"cmp"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// phase is a named set of items. Each set is whole: nothing outside of it lies between two of its items, so that a hook on either side
// makes no circle.
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

// running is what runs under one of the names, as a unit or as a static pod.
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

// files is what is made on the disk before anything has run, but for what belongs to the preparation.
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

// ordered puts each entry after its needs and otherwise keeps the order: what comes first is done first.
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
			panic("planner: a hook has made a circle at " + later[0].Ref.String())
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
