// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"cmp"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/artifact"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// bundleEvent passes on how a build goes.
func (u *up) bundleEvent(e artifact.Event) {
	u.report(Event{Stage: StageBundle, Item: e.Component, Phase: string(e.Phase), Text: e.Line, Done: e.Done, Total: e.Total})
}

func convergeEvent(name string, s reconcile.Status) Event {
	text := s.For
	switch {
	case s.Phase == reconcile.Failing:
		text = s.Error
	case s.Phase == reconcile.Doing && s.Error != "":
		text += " again; last: " + s.Error
	}
	return Event{Stage: StageConverge, Machine: name, Item: s.Ref, Phase: string(s.Phase), Text: text}
}

// milestone notes when what users care about became ready.
func (u *up) milestone(s reconcile.Status) {
	if s.Phase != reconcile.Ready || s.Since.Before(u.begun) {
		return
	}
	name, ok := map[string]string{
		"unit/etcd":                "etcd ready",
		"staticpod/etcd":           "etcd ready",
		"unit/kube-apiserver":      "API ready",
		"staticpod/kube-apiserver": "API ready",
		"control/dns":              "cluster DNS answers",
	}[s.Ref]
	if node, is := strings.CutPrefix(s.Ref, "control/node/"); is {
		name, ok = "node Ready", true
		if u.several() {
			name = "node " + node + " Ready"
		}
	}
	if !ok || slices.ContainsFunc(u.result.Milestones, func(m Milestone) bool { return m.Name == name }) {
		return
	}
	u.result.Milestones = append(u.result.Milestones, Milestone{name, s.Since.Sub(u.begun)})
	slices.SortFunc(u.result.Milestones, func(a, b Milestone) int { return cmp.Compare(a.At, b.At) })
}

func unready(last map[string]reconcile.Status) []reconcile.Status {
	var out []reconcile.Status
	for _, s := range last {
		if s.Phase != reconcile.Ready {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b reconcile.Status) int { return strings.Compare(a.Ref, b.Ref) })
	return out
}

func machineText(c machine.Change) string {
	switch {
	case c.Created:
		return "created"
	case c.Started:
		return "started"
	case c.BinaryReplaced:
		return "agent replaced"
	}
	return "runs already"
}
