// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/artifact"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// bundleEvent reports the progress of a build. There is none if the store has all components.
func (u *up) bundleEvent(e artifact.Event) {
	if u.building.IsZero() {
		u.building = time.Now()
	}
	u.report(Event{Stage: StageBundle, Item: e.Component, Phase: string(e.Phase), Text: e.Line, Done: e.Done, Total: e.Total})
}

func convergeEvent(name string, s reconcile.Status) Event {
	text := s.What
	switch {
	case s.Phase == reconcile.Failing:
		text = s.Error
	case s.Phase == reconcile.Doing && s.Error != "":
		text += " again; last: " + s.Error
	}
	return Event{Stage: StageConverge, Machine: name, Item: s.Ref, Phase: string(s.Phase), Text: text}
}

// stored notes that the store has all components.
func (u *up) stored() {
	u.storeFull = time.Now()
	if !u.building.IsZero() {
		u.result.Built = u.storeFull.Sub(u.building)
	}
}

// milestone notes when what users care about became ready, counted from when the store had all components.
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
	start := u.storeFull
	if start.IsZero() { // apply uploads components while machines boot
		start = u.begun
	}
	u.result.Milestones = append(u.result.Milestones, Milestone{name, s.Since.Sub(start)})
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
