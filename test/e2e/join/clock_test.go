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

// TestOdd has a machine with a copy of another one's disk, and machines with wrong clocks.
func TestOdd(t *testing.T) {
	c := kit.NewWith(t, "odd", kit.Failpoints(t))
	c.MustUp("--control-planes", "1", "--workers", "1")
	c.AllReady(soon, 1, 1)
	c.Part(t, "a copy of a worker's disk", copyOfWorker)
	c.Part(t, "the clock of a machine that joins", clockOfJoiner)
	c.Part(t, "the clock of the control plane", clockOfControlPlane)
	c.Part(t, "clocks that go wrong later", clocksOfNodes)
}

// copyOfWorker boots a second machine with a copy of the worker's disk while the worker runs. The cluster refuses it and reports it to the
// operator, and the worker is not affected.
func copyOfWorker(c *kit.Cluster) {
	worker := c.On(c.Worker(0))
	before, kubelet := nodeOf(c, worker.Pin()), worker.Process("kubelet")
	twin := c.Extra(2, nil)
	c.Machine("stop", twin.Node)
	for _, dir := range []string{"etc-kubernetes", "slipway"} {
		testkit.Until(c.T, soon, dir+" of the running worker is copied", func() error { // fails if the agent renames a file meanwhile
			if r := kit.Run(c.T, "cp", "-a", "-T", worker.Data(dir), twin.Data(dir)); r.Code != 0 {
				return errors.New(r.String())
			}
			return nil
		})
	}
	c.Machine("start", twin.Node)
	testkit.Until(c.T, soon, "slipway node list shows the worker's key at another address", func() error {
		nodes, err := c.Nodes()
		n := nodes[before.Name]
		if err != nil || !strings.Contains(n.Waiting, "its key is also used at ") || !strings.Contains(n.Waiting, "slipway node approve "+before.Name) {
			return fmt.Errorf("got %+v: %w", n, err)
		}
		return nil
	})
	audited(c, 0, before.Key, "key-in-use")
	testkit.Until(c.T, soon, "the copy reports what it waits for", func() error { return waitsFor(c, twin.Node, "the plan is not started") })
	if p, err := twin.TryProcess("kubelet"); err == nil {
		c.T.Errorf("kubelet of the copy: want none, got %+v", p)
	}
	after := nodeOf(c, before.Key)
	if after.Waiting = ""; !cmp.Equal(before, after) || worker.Process("kubelet").PID != kubelet.PID {
		c.T.Errorf("worker (- before, + after), or its kubelet, has changed:\n%s", cmp.Diff(before, after))
	}
	c.Machine("stop", twin.Node)
}

// waitsFor returns an error unless the items of a machine that wait for the cluster contain all these texts.
func waitsFor(c *kit.Cluster, machine string, texts ...string) error {
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
	got := ""
	for _, m := range s.Machines {
		for _, i := range m.Node.Items {
			if m.Name == machine && strings.HasPrefix(fmt.Sprint(i["ref"]), "node/") {
				got += fmt.Sprintln(i)
			}
		}
	}
	for _, text := range texts {
		if !strings.Contains(got, text) {
			return fmt.Errorf("got %s, want %q", got, text)
		}
	}
	return nil
}

func clockOfJoiner(c *kit.Cluster) {
	for i, tt := range []struct{ off, want string }{{"-17520h", "730 days behind"}, {"87600h", "3650 days ahead of"}} {
		m := c.Extra(3+i, map[string][]byte{kit.ClockFile: []byte(tt.off)})
		known := len(nodes(c))
		if r := m.TryJoin(c.NewToken("--pool", "worker")); r.Code != 0 {
			c.T.Fatal(r)
		}
		testkit.Until(c.T, soon, "the machine reports the difference of the clocks", func() error {
			return waitsFor(c, m.Node, "clocks that agree", "the clock of this machine says", tt.want, "set the clock of this machine")
		})
		if got := len(nodes(c)); got != known {
			c.T.Errorf("nodes: got %d, want %d as before", got, known)
		}
		m.SetClock("0h")
		begun := time.Now()
		testkit.Until(c.T, soon, "the machine is a node", func() error { return isReady(c, m) })
		c.T.Logf("clock wrong by %s: ready %.1f s after it was corrected", tt.off, time.Since(begun).Seconds())
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
	return fmt.Errorf("%s is not a ready node", m.Node)
}

// clockOfControlPlane sets the control plane's clock a day ahead, so that its certificates are not valid yet, and a day behind, which is
// before the CA's certificate is valid. A joining machine reports the difference each time.
func clockOfControlPlane(c *kit.Cluster) {
	c.SetClock("24h")
	fast := c.Extra(5, nil)
	if r := fast.TryJoin(c.NewToken("--pool", "worker")); r.Code != 0 {
		c.T.Fatal(r)
	}
	testkit.Until(c.T, soon, "the machine reports the difference of the clocks", func() error {
		return waitsFor(c, fast.Node, "clocks that agree", "this machine is 24h0m0s behind", "or of the control plane")
	})
	c.SetClock("0h")
	testkit.Until(c.T, soon, "the machine is a node", func() error { return isReady(c, fast) })
	c.SetClock("-24h")
	slow := c.Extra(6, nil)
	if r := slow.TryJoin(c.NewToken("--pool", "worker")); r.Code != 0 {
		c.T.Fatal(r)
	}
	testkit.Until(c.T, soon, "the machine reports the difference of the clocks", func() error {
		return waitsFor(c, slow.Node, "clocks that agree", "this machine is 24h0m0s ahead of", "or of the control plane")
	})
	c.SetClock("0h")
	testkit.Until(c.T, soon, "the machine is a node", func() error { return isReady(c, slow) })
}

// clocksOfNodes restarts agents with wrong clocks: they keep everything that their nodes have.
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
	before, running, known := c.Authorities(), pids(), len(nodes(c))
	for m, off := range map[*kit.Cluster]string{c: "-87600h", worker: "87600h"} {
		m.SetClock(off)
		m.Kill(m.Process("slipway", "agent"))
	}
	testkit.Until(c.T, soon, "the worker reports the difference of the clocks", func() error {
		return waitsFor(c, worker.Node, "clocks that agree", "days ahead of")
	})
	if diff := cmp.Diff(before, c.Authorities()); diff != "" {
		c.T.Errorf("key material with wrong clocks (- before, + after):\n%s", diff)
	}
	if diff := cmp.Diff(running, pids()); diff != "" {
		c.T.Errorf("processes with wrong clocks (- before, + after):\n%s", diff)
	}
	c.SetClock("0h")
	worker.SetClock("0h")
	testkit.Until(c.T, soon, "both agents have converged", func() error {
		s, err := c.Status()
		for _, m := range s.Machines {
			if m.Running && (m.Node == nil || !m.Node.Converged) && (m.Name == c.Node || m.Name == worker.Node) {
				return fmt.Errorf("%s: %s", m.Name, s.Verdict)
			}
		}
		return err
	})
	if files := kit.Changed(before, c.Authorities()); len(files) > 0 || len(nodes(c)) != known {
		c.T.Errorf("with correct clocks: got changed %v and %d nodes, want none and %d", files, len(nodes(c)), known)
	}
	if diff := cmp.Diff(running, pids()); diff != "" {
		c.T.Errorf("processes with correct clocks (- before, + after):\n%s", diff)
	}
}
