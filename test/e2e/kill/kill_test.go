// SPDX-License-Identifier: Apache-2.0

// Package kill_test kills the agent, components, whole machines and running commands.
package kill_test

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/testkit"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

// serviceGap is how long a client of a Service may have no answer while a component restarts. None of the components is on the path of
// the packets, so the limit is for a loaded host.
const serviceGap = 5 * time.Second

func TestKill(t *testing.T) {
	c := kit.New(t, "kill")
	c.MustUp()
	c.ImportTestImage()
	c.Apply(kit.Web)
	c.Wait("deployment/web", "condition=Available")
	c.Healthy(30 * time.Second)
	address := c.Kubectl("get", "service", "web", "--output", "jsonpath={.spec.clusterIP}")
	poller := c.Poll("http://" + address)
	defer poller.Stop()

	c.Part(t, "agent", func(c *kit.Cluster) { killAgent(c, poller) })
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "containerd", "kube-proxy"} {
		c.Part(t, name, func(c *kit.Cluster) { killComponent(c, poller, name) })
	}
	poller.Stop()
	c.Part(t, "machine", powerCut)
}

// killAgent kills the agent: the components keep running, and the next agent adopts them.
func killAgent(c *kit.Cluster, poller *kit.Poller) {
	before, pods := c.MustUnits(), containers(c)
	agent := c.Process("slipway", "agent")
	poller.Reset()
	c.Kill(agent)
	testkit.Until(c.T, 30*time.Second, "a new agent has adopted the units", func() error {
		now, err := c.Units()
		if err != nil {
			return err
		}
		if c.Process("slipway", "agent").PID == agent.PID {
			return fmt.Errorf("process %d still runs", agent.PID)
		}
		if diff := cmp.Diff(before, now); diff != "" {
			return fmt.Errorf("units (- before, + after):\n%s", diff)
		}
		return nil
	})
	c.UpToDate()
	if diff := cmp.Diff(before, c.MustUnits()); diff != "" {
		c.T.Errorf("units (- before, + after):\n%s", diff)
	}
	works(c, "after-agent")
	unharmed(c, poller, pods)
}

func killComponent(c *kit.Cluster, poller *kit.Poller, name string) {
	before, pods := c.MustUnits(), containers(c)
	poller.Reset()
	begun := time.Now()
	c.Kill(c.Process(name))
	testkit.Until(c.T, time.Minute, name+" runs again", func() error {
		now, err := c.Units()
		if err != nil {
			return err
		}
		if u := now[name]; u.PID == before[name].PID || u.PID == 0 || !u.Ready || u.Restarts != before[name].Restarts+1 {
			return fmt.Errorf("got %+v, was %+v", u, before[name])
		}
		return nil
	})
	c.T.Logf("%s is ready again after %.1f s", name, time.Since(begun).Seconds())
	c.Healthy(time.Minute)
	works(c, "after-"+name)
	after := c.MustUnits()
	others := maps.Clone(before)
	delete(others, name)
	delete(after, name)
	if diff := cmp.Diff(others, after); diff != "" {
		c.T.Errorf("other units (- before, + after):\n%s", diff)
	}
	unharmed(c, poller, pods)
}

// works runs a new pod, which needs every component, and deletes it.
func works(c *kit.Cluster, name string) {
	c.T.Helper()
	c.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec: {containers: [{name: main, image: "slipway.dev/testpod:1", imagePullPolicy: Never, args: [sleep]}]}
`, name))
	c.Wait("pod/"+name, "condition=Ready")
	c.Kubectl("exec", name, "--", "/testpod", "get", "--retry-for", "60s", "http://web.default.svc.cluster.local")
	c.Kubectl("delete", "pod", name, "--grace-period", "1")
}

// unharmed fails the test if containers have restarted since before, or if the Service did not answer for too long.
func unharmed(c *kit.Cluster, poller *kit.Poller, before map[string]string) {
	c.T.Helper()
	if diff := cmp.Diff(before, containers(c)); diff != "" {
		c.T.Errorf("containers (- before, + after):\n%s", diff)
	}
	gap, answers, err := poller.Gap()
	c.T.Logf("client of the Service: %d answers, longest gap %.2f s", answers, gap.Seconds())
	if gap > serviceGap || answers == 0 {
		c.T.Errorf("client of the Service: got no answer for %s, want at most %s: %v", gap, serviceGap, err)
	}
}

// containers returns the containers of all pods except mirror pods.
func containers(c *kit.Cluster) map[string]string {
	c.T.Helper()
	found := c.Containers()
	if len(found) < 3 { // web, web, coredns
		c.T.Fatalf("containers: got %v, want at least three", found)
	}
	return found
}

const (
	agentKills = 200 // one each quarter of a second, on average
	// clientGap is how long a client of the API may have no answer meanwhile. No agent is on the path of a request, but a loaded host may
	// make etcd elect another leader.
	clientGap = 15 * time.Second
)

// TestAgentsDie kills the agents of all control planes at random times while clients write and read. Components, pods and etcd's members
// must not be affected.
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
	dice := kit.Dice(t)
	for range agentKills {
		m := mains[dice.IntN(len(mains))]
		if killed(m) {
			kills[m.Node]++
		}
		<-time.After(time.Duration(dice.Int64N(int64(500 * time.Millisecond)))) // may hit the agent while it starts
	}
	gap, acked, err := writer.Gap()
	readGap, answers, readErr := readers.Gap()
	t.Logf("agents killed: %v; %d writes, longest gap %.2f s (%v); %d reads, longest gap %.2f s (%v)", kills, acked, gap.Seconds(), err, answers, readGap.Seconds(), readErr)
	for _, m := range mains {
		if kills[m.Node] < 5 {
			t.Errorf("kills of the agent of %s: got %d, want at least 5", m.Node, kills[m.Node])
		}
	}
	if gap > clientGap || readGap > clientGap || acked == 0 || answers == 0 {
		t.Errorf("clients: got no answer for %s (writes) and %s (reads), want at most %s", gap, readGap, clientGap)
	}
	c.AllReady(time.Minute, 3, 1)
	writer.Stop()
	writer.CheckAcked(c)
	for i, m := range mains {
		testkit.Until(t, time.Minute, "the agent of "+m.Node+" has adopted its units", func() error {
			now, err := m.Units()
			if diff := cmp.Diff(before[i], now); err == nil && diff != "" {
				err = errors.New("units (- before, + after):\n" + diff)
			}
			return err
		})
	}
}

// killed kills the machine's agent. It returns false if no agent runs at the moment.
func killed(m *kit.Cluster) bool {
	all := m.Processes()
	i := slices.IndexFunc(all, func(p kit.Process) bool {
		return len(p.Args) > 1 && filepath.Base(p.Args[0]) == "slipway" && p.Args[1] == "agent"
	})
	return i >= 0 && unix.Kill(all[i].PID, unix.SIGKILL) == nil
}
