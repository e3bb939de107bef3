// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"testing"
	"time"
)

// changes is a story of turns: the plan changes, and each control plane restarts what has changed.
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

// TestCrashInTurn lets each machine fall once at each step of a change: by power, its agent alone for a moment or for longer than a
// turn lives, or so that the answer to a write is lost.
func TestCrashInTurn(t *testing.T) {
	t.Parallel()
	for kind, how := range map[string]crash{
		"power": {}, "power, for long": {back: 4 * time.Minute}, "agent": {agentOnly: true}, "agent, for long": {agentOnly: true, agentless: 45 * time.Second},
		"answer": {mislay: true},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s, points := survey(t, "a change", changes)
			points = slices.DeleteFunc(points, func(p step) bool { return how.mislay && p.name != "put turn done" })
			if len(points) < 6 {
				t.Fatalf("%d steps: the survey says nothing", len(points))
			}
			picked, missed := newSample(t).pick(t, 16, len(points), "crash points"), 0
			for _, i := range picked {
				c := how
				c.machine, c.name, c.n = points[i].machine, points[i].name, points[i].n
				missed += crashAt(t, s, &c)
			}
			if missed*2 > len(picked) {
				t.Errorf("%d of %d crash points were not reached again, want at most half", missed, len(picked))
			}
		})
	}
}
