// SPDX-License-Identifier: Apache-2.0

// Package kill_test tells what happens when something dies: the agent, a component, the whole machine, or the command.
package kill_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/testkit"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

// lasting is how long a client of a Service may be without an answer while one component is started anew. Nothing that
// dies here lies on the path of the packets; what remains is a busy host.
const lasting = 5 * time.Second

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

// killAgent: the components never notice, and the next agent takes them as they are.
func killAgent(c *kit.Cluster, poller *kit.Poller) {
	before, pods := c.MustUnits(), containers(c)
	agent := c.Process("slipway", "agent")
	poller.Reset()
	c.Kill(agent)
	testkit.Until(c.T, 30*time.Second, "another agent has taken over", func() error {
		now, err := c.Units()
		if err != nil {
			return err
		}
		if c.Process("slipway", "agent").PID == agent.PID {
			return fmt.Errorf("process %d is still there", agent.PID)
		}
		if diff := cmp.Diff(before, now); diff != "" {
			return fmt.Errorf("units (- before, + after):\n%s", diff)
		}
		return nil
	})
	if r := c.MustUp(); !strings.Contains(r.Out, "nothing to do") {
		c.T.Errorf("up after the agent's death: %s", r)
	}
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
			return fmt.Errorf("before: %+v, now: %+v", before[name], u)
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

// works runs a new pod, which takes every component, and removes it.
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

// unharmed: the pods of before are the same containers still, and their Service has answered all the time.
func unharmed(c *kit.Cluster, poller *kit.Poller, before map[string]string) {
	c.T.Helper()
	if diff := cmp.Diff(before, containers(c)); diff != "" {
		c.T.Errorf("containers (- before, + after):\n%s", diff)
	}
	gap, answers, err := poller.Gap()
	c.T.Logf("the Service's client: %d answers, longest gap %.2f s", answers, gap.Seconds())
	if gap > lasting || answers == 0 {
		c.T.Errorf("the Service's client was without an answer for %s: %v", gap, err)
	}
}

// containers maps each container of each running pod to its id, start and number of restarts. Components that run as static pods are
// compared as units.
func containers(c *kit.Cluster) map[string]string {
	c.T.Helper()
	var pods struct {
		Items []struct {
			Metadata struct {
				Name, DeletionTimestamp string
				Annotations             map[string]string
			}
			Status struct {
				ContainerStatuses []struct {
					Name, ContainerID string
					RestartCount      int
					State             struct{ Running struct{ StartedAt string } }
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(c.Kubectl("get", "pods", "--all-namespaces", "--output", "json")), &pods); err != nil {
		c.T.Fatal(err)
	}
	found := map[string]string{}
	for _, p := range pods.Items {
		for _, s := range p.Status.ContainerStatuses {
			if p.Metadata.DeletionTimestamp == "" && p.Metadata.Annotations["kubernetes.io/config.mirror"] == "" {
				found[p.Metadata.Name+"/"+s.Name] = fmt.Sprintf("%s since %s, %d restarts", s.ContainerID, s.State.Running.StartedAt, s.RestartCount)
			}
		}
	}
	if len(found) < 3 { // web, web, coredns
		c.T.Fatalf("only these containers: %v", found)
	}
	return found
}

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
		testkit.Until(t, time.Minute, "the agent of "+m.Node+" has taken its units over", func() error {
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
