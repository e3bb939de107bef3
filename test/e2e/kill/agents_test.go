// SPDX-License-Identifier: Apache-2.0

package kill_test

import (
	"errors"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

// agentsDie is for how long agents are killed, and writesGap how long a writer may be without an answer meanwhile: no agent lies on the
// way of a write; what remains is a busy host, on which etcd may elect another leader.
const (
	agentsDie = time.Minute
	writesGap = 15 * time.Second
)

// TestAgentsDie kills the agents of all control planes at random times while somebody writes and others read: components, pods and
// etcd's members never notice.
func TestAgentsDie(t *testing.T) {
	c := kit.New(t, "agents")
	c.MustUp("--control-planes", "3", "--workers", "1")
	c.AllReady(time.Minute, 3, 1)
	mains := []*kit.Cluster{c.On(c.Main(0)), c.On(c.Main(1)), c.On(c.Main(2))}
	var before []map[string]kit.Unit
	for _, m := range mains {
		before = append(before, m.MustUnits())
	}
	worker := c.On(c.Worker(0))
	writer, readers := worker.WriteAPI("agents"), worker.ReadAPI(2, 1)
	defer writer.Stop()
	defer readers.Stop()
	kills := map[string]int{}
	for end := time.Now().Add(agentsDie); time.Now().Before(end); {
		m := mains[rand.N(len(mains))]
		if killed(m) {
			kills[m.Node]++
		}
		<-time.After(rand.N(500 * time.Millisecond)) // sometimes in the middle of a start
	}
	gap, acked, err := writer.Gap()
	readGap, answers, readErr := readers.Gap()
	t.Logf("agents killed: %v; %d writes, longest gap %.2f s (%v); %d reads, longest gap %.2f s (%v)", kills, acked, gap.Seconds(), err, answers, readGap.Seconds(), readErr)
	for _, m := range mains {
		if kills[m.Node] < 5 {
			t.Errorf("the agent of %s was killed %d times", m.Node, kills[m.Node])
		}
	}
	if gap > writesGap || readGap > writesGap || acked == 0 || answers == 0 {
		t.Errorf("clients were without an answer for %s and %s", gap, readGap)
	}
	c.AllReady(time.Minute, 3, 1)
	writer.Stop()
	writer.AllThere(c)
	for i, m := range mains {
		kit.Until(t, time.Minute, "the agent of "+m.Node+" has taken its units over", func() error {
			now, err := m.Units()
			if diff := cmp.Diff(before[i], now); err == nil && diff != "" {
				err = errors.New("units (- before, + after):\n" + diff)
			}
			return err
		})
	}
}

// killed kills the machine's agent; false when there is none at the moment.
func killed(m *kit.Cluster) bool {
	all := m.Processes()
	i := slices.IndexFunc(all, func(p kit.Process) bool {
		return len(p.Args) > 1 && filepath.Base(p.Args[0]) == "slipway" && p.Args[1] == "agent"
	})
	return i >= 0 && unix.Kill(all[i].PID, unix.SIGKILL) == nil
}
