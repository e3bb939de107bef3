// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"
)

// sweeps are the short stories in which a machine falls between every two steps: the one that joins and the one that lets it in.
var sweeps = map[string]string{
	"init": `machines 1
init n1
wait
expect init request-n1 committed
expect clusters 1
expect members 1
expect nodes 1`,
	"worker": `machines 2
init n1
join n2 worker
wait
expect init request-n1 committed
expect clusters 1
expect members 1
expect records 2
expect name n2 dev-worker-0
expect nodes 2`,
	"worker with a token": `machines 2
init n1
join n2 worker token
wait
expect init request-n1 committed
expect clusters 1
expect records 2
expect name n2 dev-worker-0
expect nodes 2`,
	"control plane": `machines 2
init n1
join n2 control-plane
wait
expect init request-n1 committed
expect clusters 1
expect members 2
expect records 2
expect name n2 dev-main-1
expect nodes 2`,
	"leaving": `machines 2
init n1
join n2 worker
wait
remove n2
reset n2
wait 5s
join n2 worker token
wait
expect records 2
expect nodes 2`,
}

// longSweeps take too long for every run: only SIM_ALL=1 includes them.
var longSweeps = map[string]string{
	"third control plane": `machines 3
init n1
join n2 control-plane
wait
join n3 control-plane
wait
expect clusters 1
expect members 3
expect records 3
expect nodes 3`,
	"leaving control plane": `machines 3
init n1
join n2 control-plane
join n3 control-plane
wait
remove n3
reset n3
wait 5s
join n3 worker token
wait
expect members 2
expect records 3
expect nodes 3`,
	"init that fails": `machines 1
fail n1 unit/kube-apiserver
init n1
wait 32m
expect init request-n1 "did not come to be"
expect free n1
mend n1
init n1 as request-two
wait 20s
expect init request-two committed
expect nodes 1`,
}

// sweepsOf returns the sweeps of this run.
func sweepsOf(sampled sample) map[string]string {
	all := maps.Clone(sweeps)
	if sampled.all {
		maps.Copy(all, longSweeps)
	}
	return all
}

// back is how long a machine stays off after a crash.
const back = 3 * time.Second

// Sizes of the samples of each sweep.
const (
	crashPoints  = 80 // of TestCrashEverywhere
	firstPoints  = 8  // of TestCrashTwice
	secondPoints = 4  // of TestCrashTwice, for each of the first
)

// TestCrashEverywhere crashes each machine at each of its steps: by power, and its agent alone.
func TestCrashEverywhere(t *testing.T) {
	t.Parallel()
	sampled := newSample(t)
	for name, text := range sweepsOf(sampled) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, points := survey(t, name, text)
			picked := sampled.pick(t, crashPoints, 2*len(points), "crash points")
			missed := 0
			for _, i := range picked {
				p := points[i/2]
				missed += crashAt(t, s, &crash{machine: p.machine, name: p.name, n: p.n, agentOnly: i%2 == 1})
			}
			if missed*5 > len(picked) {
				t.Errorf("%d of %d crash points were not reached again, want at most a fifth", missed, len(picked))
			}
		})
	}
}

// TestCrashTwice crashes a machine a second time while it recovers from the first crash.
func TestCrashTwice(t *testing.T) {
	t.Parallel()
	sampled := newSample(t)
	for name, text := range sweepsOf(sampled) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, points := survey(t, name, text)
			for _, i := range sampled.pick(t, firstPoints, len(points), "first crash points") {
				p := points[i]
				again := recovery(t, s, p)
				for _, j := range sampled.pick(t, secondPoints, len(again), fmt.Sprintf("crash points after %s", p)) {
					q := again[j]
					crashAt(t, s, &crash{machine: p.machine, name: p.name, n: p.n, then: &crash{machine: q.machine, name: q.name, n: q.n}})
				}
			}
		})
	}
}

// survey tells the story without a fault and gives its steps; of a story with a change of the plan, those since then.
func survey(t *testing.T, name, text string) (s story, points []step) {
	t.Helper()
	s, err := parse(name, text)
	if err != nil {
		t.Fatal(err)
	}
	bubble(t, name+" without a crash", func(t *testing.T) *world {
		w := s.run(t, 1, nil)
		points = slices.Clone(w.steps[w.changedAt:])
		return w
	})
	return s, points
}

// recovery gives the steps of a machine after its crash.
func recovery(t *testing.T, s story, at step) (after []step) {
	t.Helper()
	c := &crash{machine: at.machine, name: at.name, n: at.n}
	bubble(t, fmt.Sprintf("%s, crash at %s", s.name, at), func(t *testing.T) *world {
		c.back, c.done = back, make(chan struct{})
		w := s.run(t, 1, func(w *world) { w.armed = append(w.armed, c) })
		i := slices.Index(w.steps, at)
		for _, p := range w.steps[i+1:] {
			if p.machine == at.machine {
				after = append(after, p)
			}
		}
		if i < 0 {
			after = nil
		}
		return w
	})
	return after
}

// crashAt runs the story with a crash. It returns 1 if the run did not reach the crash's step, otherwise 0.
func crashAt(t *testing.T, s story, c *crash) (missed int) {
	t.Helper()
	what := fmt.Sprintf("%s, crash of %s at %q #%d (agent only: %t)", s.name, c.machine, c.name, c.n, c.agentOnly)
	if c.then != nil {
		what += fmt.Sprintf(", then at %q #%d", c.then.name, c.then.n)
	}
	bubble(t, what, func(t *testing.T) *world {
		for d := c; d != nil; d = d.then {
			if d.done = make(chan struct{}); d.back == 0 {
				d.back = back
			}
		}
		w := s.run(t, 1, func(w *world) { w.armed = append(w.armed, c) })
		if slices.Contains(w.armed, c) {
			missed = 1
		}
		return w
	})
	return missed
}
