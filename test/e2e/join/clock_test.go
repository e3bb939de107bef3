// SPDX-License-Identifier: Apache-2.0

package join_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/testkit"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

// TestOdd has machines that are not what they seem: one with a copy of another's disk, and some whose clock lies.
func TestOdd(t *testing.T) {
	c := kit.NewWith(t, "odd", kit.Failpoints(t))
	c.MustUp("--control-planes", "1", "--workers", "1")
	c.AllReady(soon, 1, 1)
	c.Part(t, "a copy of a worker's disk", copyOfWorker)
	c.Part(t, "the clock of a machine that joins", clockOfJoiner)
	c.Part(t, "the clock of the control plane", clockOfControlPlane)
	c.Part(t, "clocks that go wrong later", clocksOfNodes)
}

// copyOfWorker boots a second machine with all that is on the worker's disk, while the worker lives: the cluster keeps it out, says
// so to the operator, and it does not disturb the worker.
func copyOfWorker(c *kit.Cluster) {
	worker := c.On(c.Worker(0))
	before, kubelet := nodeOf(c, worker.Pin()), worker.Process("kubelet")
	twin := c.Extra(2, nil)
	c.Machine("stop", twin.Node)
	for _, folder := range []string{"etc-kubernetes", "slipway"} {
		testkit.Until(c.T, soon, folder+" of the running worker is copied", func() error { // what its agent writes meanwhile may go under its hands
			if r := kit.Run(c.T, "cp", "-a", "-T", worker.Data(folder), twin.Data(folder)); r.Code != 0 {
				return errors.New(r.String())
			}
			return nil
		})
	}
	c.Machine("start", twin.Node)
	testkit.Until(c.T, soon, "the list says that the worker's key is shown elsewhere", func() error {
		nodes, err := c.Nodes()
		n := nodes[before.Name]
		if err != nil || !strings.Contains(n.Waiting, "its key is shown at ") || !strings.Contains(n.Waiting, "slipway node approve "+before.Name) {
			return fmt.Errorf("%+v: %w", n, err)
		}
		return nil
	})
	testkit.Until(c.T, soon, "the audit says why", func() error {
		for line := range strings.Lines(string(c.Read("log", "slipway", "join-audit.log"))) {
			if strings.Contains(line, before.Key) && strings.Contains(line, "reason=key-in-use") {
				return nil
			}
		}
		return errors.New("it does not")
	})
	testkit.Until(c.T, soon, "the copy says what it waits for", func() error { return says(c, twin.Node, "no leave to run here") })
	if p, err := twin.TryProcess("kubelet"); err == nil {
		c.T.Errorf("the copy runs a kubelet: %+v", p)
	}
	after := nodeOf(c, before.Key)
	if after.Waiting = ""; !cmp.Equal(before, after) || worker.Process("kubelet").PID != kubelet.PID {
		c.T.Errorf("the worker: %s", cmp.Diff(before, after))
	}
	c.Machine("stop", twin.Node)
}

// says looks for what a machine waits for, in its status.
func says(c *kit.Cluster, machine string, words ...string) error {
	var s struct {
		Machines []struct {
			Name string `json:"name"`
			Node struct {
				Items []map[string]any `json:"items"`
			} `json:"node"`
		} `json:"machines"`
	}
	if err := json.Unmarshal([]byte(c.Slipway("status", "--output", "json").Out), &s); err != nil {
		return err
	}
	said := ""
	for _, m := range s.Machines {
		for _, i := range m.Node.Items {
			if m.Name == machine && strings.HasPrefix(fmt.Sprint(i["ref"]), "node/") {
				said += fmt.Sprintln(i)
			}
		}
	}
	for _, w := range words {
		if !strings.Contains(said, w) {
			return fmt.Errorf("%q is not in: %s", w, said)
		}
	}
	return nil
}

func clockOfJoiner(c *kit.Cluster) {
	for i, tt := range []struct{ off, says string }{{"-17520h", "730 days behind"}, {"87600h", "3650 days ahead of"}} {
		m := c.Extra(3+i, map[string][]byte{kit.ClockFile: []byte(tt.off)})
		known := len(nodes(c))
		if r := m.TryJoin(c.NewToken("--pool", "worker")); r.Code != 0 {
			c.T.Fatal(r)
		}
		testkit.Until(c.T, soon, "the machine says which clocks do not agree", func() error {
			return says(c, m.Node, "clocks that agree", "the clock of this machine says", tt.says, "whoever sets the clock")
		})
		if got := len(nodes(c)); got != known {
			c.T.Errorf("%d nodes, want %d still", got, known)
		}
		m.SetClock("0h")
		begun := time.Now()
		testkit.Until(c.T, soon, "the machine is a node", func() error { return isReady(c, m) })
		c.T.Logf("clock off by %s: ready %.1f s after it was set right", tt.off, time.Since(begun).Seconds())
	}
}

func nodes(c *kit.Cluster) map[string]kit.Node {
	c.T.Helper()
	all, err := c.Nodes()
	if err != nil {
		c.T.Fatal(err)
	}
	return all
}

func isReady(c, m *kit.Cluster) error {
	pin := m.Pin()
	all, err := c.Nodes()
	if err != nil {
		return err
	}
	for _, n := range all {
		if n.Key == pin && n.Ready {
			return nil
		}
	}
	return fmt.Errorf("%s is no ready node", m.Node)
}

// clockOfControlPlane: a day fast, what it signs is good for nobody yet; a day slow, it is before the CA was made, and it signs
// nothing. Whoever joins says so.
func clockOfControlPlane(c *kit.Cluster) {
	c.SetClock("24h")
	fast := c.Extra(5, nil)
	if r := fast.TryJoin(c.NewToken("--pool", "worker")); r.Code != 0 {
		c.T.Fatal(r)
	}
	testkit.Until(c.T, soon, "the machine says which clocks do not agree", func() error {
		return says(c, fast.Node, "clocks that agree", "this machine is 24h0m0s behind", "or of the control plane")
	})
	c.SetClock("0h")
	testkit.Until(c.T, soon, "the machine is a node", func() error { return isReady(c, fast) })
	c.SetClock("-24h")
	slow := c.Extra(6, nil)
	if r := slow.TryJoin(c.NewToken("--pool", "worker")); r.Code != 0 {
		c.T.Fatal(r)
	}
	testkit.Until(c.T, soon, "the machine says which clocks do not agree", func() error {
		return says(c, slow.Node, "clocks that agree", "this machine is 24h0m0s ahead of", "or of the control plane")
	})
	c.SetClock("0h")
	testkit.Until(c.T, soon, "the machine is a node", func() error { return isReady(c, slow) })
}

// clocksOfNodes: agents that wake up at a wrong time keep all that their nodes have.
func clocksOfNodes(c *kit.Cluster) {
	worker := c.On(c.Worker(0))
	pids := func() map[string]int {
		found := map[string]int{}
		for _, name := range []string{"containerd", "etcd", "kube-apiserver", "kubelet"} {
			found["main "+name] = c.Process(name).PID
		}
		for _, name := range []string{"containerd", "kubelet"} {
			found["worker "+name] = worker.Process(name).PID
		}
		return found
	}
	before, running, known := authorities(c), pids(), len(nodes(c))
	for m, off := range map[*kit.Cluster]string{c: "-87600h", worker: "87600h"} {
		m.SetClock(off)
		m.Kill(m.Process("slipway", "agent"))
	}
	testkit.Until(c.T, soon, "the worker says what is wrong", func() error { return says(c, worker.Node, "clocks that agree", "days ahead of") })
	if lost := changed(before, authorities(c)); len(lost) > 0 || len(authorities(c)) != len(before) {
		c.T.Errorf("by a wrong clock these were made again: %v", lost)
	}
	if diff := cmp.Diff(running, pids()); diff != "" {
		c.T.Errorf("by a wrong clock these were started again:\n%s", diff)
	}
	c.SetClock("0h")
	worker.SetClock("0h")
	testkit.Until(c.T, soon, "all nodes are as they were", func() error {
		s, err := c.Status()
		for _, m := range s.Machines {
			if m.Running && (m.Node == nil || !m.Node.Converged) && (m.Name == c.Node || m.Name == worker.Node) {
				return fmt.Errorf("%s: %s", m.Name, s.Verdict)
			}
		}
		return err
	})
	if lost := changed(before, authorities(c)); len(lost) > 0 || len(nodes(c)) != known {
		c.T.Errorf("%v were made again, %d nodes are known, want %d", lost, len(nodes(c)), known)
	}
	if diff := cmp.Diff(running, pids()); diff != "" {
		c.T.Errorf("afterwards:\n%s", diff)
	}
}
