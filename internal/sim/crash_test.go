// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/testkit/cluster"
)

// sweeps are short stories in which every machine crashes at each of its steps.
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
expect init request-n1 "failed"
expect free n1
repair n1
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
				missed += crashAt(t, s, &cluster.Crash{Machine: p.Machine, Name: p.Name, N: p.N, AgentOnly: i%2 == 1})
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
					crashAt(t, s, &cluster.Crash{Machine: p.Machine, Name: p.Name, N: p.N, Then: &cluster.Crash{Machine: q.Machine, Name: q.Name, N: q.N}})
				}
			}
		})
	}
}

// survey runs the story without a crash and returns its steps, or those since its first change of the plan.
func survey(t *testing.T, name, text string) (cluster.Story, []cluster.Step) {
	t.Helper()
	s := parse(t, name, text)
	return s, s.Run(t, name+" without a crash", 1).StepsOfChange()
}

// recovery returns the steps of a machine after its crash.
func recovery(t *testing.T, s cluster.Story, at cluster.Step) (after []cluster.Step) {
	t.Helper()
	c := &cluster.Crash{Machine: at.Machine, Name: at.Name, N: at.N}
	steps := s.Run(t, fmt.Sprintf("%s, crash at %s", s, at), 1, c).Steps()
	i := slices.Index(steps, at)
	if i < 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(steps[i+1:]), func(p cluster.Step) bool { return p.Machine != at.Machine })
}

// crashAt runs the story with a crash. It returns 1 if the run did not reach the crash's step, otherwise 0.
func crashAt(t *testing.T, s cluster.Story, c *cluster.Crash) (missed int) {
	t.Helper()
	what := fmt.Sprintf("%s, crash of %s at %q #%d (agent only: %t)", s, c.Machine, c.Name, c.N, c.AgentOnly)
	if c.Then != nil {
		what += fmt.Sprintf(", then at %q #%d", c.Then.Name, c.Then.N)
	}
	if !s.Run(t, what, 1, c).Happened(c) {
		return 1
	}
	return 0
}

// changes is a story in which the plan changes and each control plane restarts what has changed, one after the other.
const changes = `machines 3
init n1
join n2 control-plane
join n3 control-plane
wait
change etcd v2
change kube-apiserver v2
wait
expect runs etcd v2 3
expect runs kube-apiserver v2 3
expect clusters 1
expect members 3
expect nodes 3`

// TestCrashInTurn crashes each machine at the steps of a change: by power, its agent alone for a moment or for longer
// than its rollout lease lasts, or by losing the answer to a write.
func TestCrashInTurn(t *testing.T) {
	t.Parallel()
	for kind, how := range map[string]cluster.Crash{
		"power": {}, "power, for long": {Back: 4 * time.Minute}, "agent": {AgentOnly: true}, "agent, for long": {AgentOnly: true, Agentless: 45 * time.Second},
		"answer": {Mislay: true},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s, points := survey(t, "a change", changes)
			points = slices.DeleteFunc(points, func(p cluster.Step) bool { return how.Mislay && p.Name != "put rollout lease done" })
			if len(points) < 6 {
				t.Fatalf("got %d steps, want at least 6", len(points))
			}
			picked, missed := newSample(t).pick(t, 16, len(points), "crash points"), 0
			for _, i := range picked {
				c := how
				c.Machine, c.Name, c.N = points[i].Machine, points[i].Name, points[i].N
				missed += crashAt(t, s, &c)
			}
			if missed*2 > len(picked) {
				t.Errorf("%d of %d crash points were not reached again, want at most half", missed, len(picked))
			}
		})
	}
}
