// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
)

// Spread is the least, the middle and the greatest of some values.
type Spread struct{ Min, Median, Max float64 }

func spread(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	v := slices.Sorted(slices.Values(values))
	middle := len(v) / 2
	s := Spread{v[0], v[middle], v[len(v)-1]}
	if len(v)%2 == 0 {
		s.Median = (v[middle-1] + v[middle]) / 2
	}
	return s
}

// disturbed is the share of all CPUs that others may take during a boot before it says more of them than of Slipway. Kernel
// threads that write for the cluster are among the others: about a tenth.
const disturbed = 0.2

// undisturbed leaves out boots during which others were at work, unless too few remain to say anything.
func (r Report) undisturbed() []Run {
	var calm []Run
	for _, run := range r.Runs {
		if !r.disturbedRun(run) {
			calm = append(calm, run)
		}
	}
	if len(calm) < min(3, len(r.Runs)) {
		return r.Runs
	}
	return calm
}

func (r Report) disturbedRun(run Run) bool {
	return run.Foreign > disturbed*float64(r.Host.CPUs)*run.Up
}

// figure is one line of the result.
type figure struct {
	name   string
	unit   string
	value  Spread
	digits int
	target float64 // 0: there is none
	peers  peers
}

// verdict says whether the median keeps the target, and by how much not.
func (f figure) verdict() string {
	switch {
	case f.target == 0:
		return ""
	case f.value.Median <= f.target:
		return "ok"
	}
	return fmt.Sprintf("missed by %.*f %s", f.digits, f.value.Median-f.target, f.unit)
}

const mebibyte = 1 << 20

// bootFigures are those of one machine's boot; none without a run.
func bootFigures(runs []Run) []figure {
	if len(runs) == 0 {
		return nil
	}
	of := func(field func(Run) float64) Spread {
		values := make([]float64, 0, len(runs))
		for _, run := range runs {
			values = append(values, field(run))
		}
		return spread(values)
	}
	return []figure{
		{"API ready", "s", of(func(r Run) float64 { return r.APIReady }), 2, 0, peersAPI},
		{"node Ready", "s", of(func(r Run) float64 { return r.NodeReady }), 2, 4, peersNode},
		{"first pod accepted", "s", of(func(r Run) float64 { return r.Admitted }), 2, 0, peers{}},
		{"first pod Running", "s", of(func(r Run) float64 { return r.PodRunning }), 2, 6, peersPod},
		{"DNS answers in a pod", "s", of(func(r Run) float64 { return r.DNS }), 2, 8, peersDNS},
		{"up, whole command", "s", of(func(r Run) float64 { return r.Up }), 2, 0, peers{}},
		{"up again, no change", "s", of(func(r Run) float64 { return r.SecondUp }), 2, 0, peers{}},
		{"down", "s", of(func(r Run) float64 { return r.Down }), 2, 0, peers{}},
		{"CPU until DNS answers", "s", of(func(r Run) float64 { return r.CPU }), 2, 6, peersCPU},
	}
}

// figures are all lines of the result, targets included.
func (r Report) figures() []figure {
	once := func(v float64) Spread { return Spread{v, v, v} }
	out := bootFigures(r.undisturbed())
	if r.Spec > 0 {
		out = append(out, figure{"spec and plans, 1 000 machines", "s", once(r.Spec), 2, 1, peers{}})
	}
	out = append(out, figure{"bin/slipway", "MiB", once(float64(r.Size) / mebibyte), 1, 0, peers{}})
	if i := r.Idle; i != nil {
		out = append(out,
			figure{"PSS, all processes, idle", "MiB", once(float64(sum(i.PSS)) / mebibyte), 0, 560, peersPSS},
			figure{"PSS of the agent, idle", "MB", once(float64(i.Agent) / 1e6), 1, 40, peers{}},
			figure{"CPU of the agent, idle", "% of a core", once(100 * i.Share), 2, 0.5, peers{}},
			figure{"CPU of an idle minute", "s", once(i.CPU), 2, 0, peersIdle},
		)
	}
	return append(out, r.Several.figures()...)
}
