// SPDX-License-Identifier: Apache-2.0

package ha_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/testkit"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

// The longest time without an answer to an API client on a worker.
const (
	serverLoss = 3 * time.Second  // after the loss of an API server or of its machine
	leaderLoss = 15 * time.Second // after the loss of the machine with etcd's leader
)

// killAPIServer kills all API servers one after the other, so that each of the worker's clients loses its connection once. The balancer
// distributes the connections of the clients that keep theirs.
func killAPIServer(c *kit.Cluster) {
	readers := c.On(c.Worker(0)).ReadAPI(4, 2)
	defer readers.Stop()
	for i := range mains {
		main := c.On(c.Main(i))
		before := main.Process("kube-apiserver")
		readers.Reset()
		main.Kill(before)
		testkit.Until(c.T, soon, main.Node+" has a new API server that is ready", func() error {
			units, err := main.Units()
			if err != nil {
				return err
			}
			if u := units["kube-apiserver"]; u.PID == before.MachinePID || !u.Ready || u.PID == 0 {
				return fmt.Errorf("got %+v", u)
			}
			return nil
		})
		checkGap(c, readers, "API server of "+main.Node+" killed", serverLoss)
	}
}

// checkGap fails the test if a client had no answer for longer than limit.
func checkGap(c *kit.Cluster, readers kit.Readers, what string, limit time.Duration) {
	c.T.Helper()
	gap, answers, err := readers.Gap()
	c.T.Logf("%s: at least %d answers to each client, longest gap %.2f s (last error: %v)", what, answers, gap.Seconds(), err)
	if gap > limit || answers == 0 {
		c.T.Errorf("%s: got no answer on a worker for %s, want at most %s: %v", what, gap, limit, err)
	}
}

// stopFollower cuts the power of a control plane whose etcd is a follower.
func stopFollower(c *kit.Cluster) {
	leader := c.Leader()
	victim := c.Main(0)
	if victim == leader {
		victim = c.Main(1)
	}
	readers := c.On(c.Worker(0)).ReadAPI(4, 2)
	defer readers.Stop()
	testkit.Until(c.T, soon, "each client has answers", func() error {
		if _, answers, err := readers.Gap(); answers < 5 {
			return fmt.Errorf("got %d answers: %w", answers, err)
		}
		return nil
	})
	readers.Reset()
	c.Machine("cut", victim) // first, so that no FIN or RST closes the connections
	c.Machine("stop", victim)
	testkit.Until(c.T, soon, "each client has 100 more answers", func() error {
		if _, answers, err := readers.Gap(); answers < 100 {
			return fmt.Errorf("got %d answers: %w", answers, err)
		}
		return nil
	})
	checkGap(c, readers, "machine "+victim+" stopped", serverLoss)
	begun := time.Now()
	c.Machine("heal", victim)
	c.Machine("start", victim)
	c.AllReady(soon, mains, workers)
	c.T.Logf("%s is ready again after %.1f s", victim, time.Since(begun).Seconds())
}

// stopLeader cuts the power of the control plane with etcd's leader while a client writes.
func stopLeader(c *kit.Cluster) {
	leader := c.Leader()
	writer := c.On(c.Worker(0)).WriteAPI("leader-loss")
	defer writer.Stop()
	writes(c, writer, 20)
	writer.Reset()
	c.Machine("cut", leader)
	c.Machine("stop", leader)
	writes(c, writer, 100)
	gap, answers, err := writer.Gap()
	c.T.Logf("leader %s stopped: longest gap between acknowledged writes %.2f s, %d writes since (last error: %v)", leader, gap.Seconds(), answers, err)
	if gap > leaderLoss {
		c.T.Errorf("got no acknowledged write for %s, want at most %s: %v", gap, leaderLoss, err)
	}
	c.Machine("heal", leader)
	c.Machine("start", leader)
	c.AllReady(soon, mains, workers)
	writer.Stop()
	writer.CheckAcked(c)
	healthyMembers(c)
}

// writes waits until n writes have been acknowledged since the last Reset.
func writes(c *kit.Cluster, w *kit.Writer, n int) {
	c.T.Helper()
	testkit.Until(c.T, soon, strconv.Itoa(n)+" acknowledged writes", func() error {
		if _, answers, err := w.Gap(); answers < n {
			return fmt.Errorf("got %d writes: %w", answers, err)
		}
		return nil
	})
}

// healthyMembers waits until all members are healthy, as seen from each member.
func healthyMembers(c *kit.Cluster) {
	c.T.Helper()
	for i := range mains {
		testkit.Until(c.T, soon, fmt.Sprintf("%s sees %d healthy members", c.Main(i), mains), func() error {
			out, err := c.On(c.Main(i)).TryEtcdctl("endpoint health --cluster 2>&1")
			if err == nil && strings.Count(out, "is healthy") != mains { // etcdctl's text
				err = errors.New(out)
			}
			return err
		})
	}
}

// webContainers returns the containers of the workload's pods on the given nodes.
func webContainers(c *kit.Cluster, nodes ...string) map[string]string {
	c.T.Helper()
	found := c.Containers("--selector", "app=web")
	maps.DeleteFunc(found, func(name, _ string) bool {
		return !slices.ContainsFunc(nodes, func(node string) bool { return strings.HasPrefix(name, node+": ") })
	})
	if len(found) != len(nodes) {
		c.T.Fatalf("containers of the workload on %v: got %v, want one on each", nodes, found)
	}
	return found
}

// stopAll cuts the power of all control planes at the same time while a client writes. The workers' pods keep running.
func stopAll(c *kit.Cluster) {
	all := []string{c.Main(0), c.Main(1), c.Main(2)}
	both := []string{c.Worker(0), c.Worker(1)}
	before, pods := c.Identity(all...), webContainers(c, both...)
	poller := c.On(c.Worker(0)).Poll("http://" + net.JoinHostPort(podAddress(c, c.Worker(1)), "8081"))
	defer poller.Stop()
	writer := c.On(c.Worker(0)).WriteAPI("power-loss")
	defer writer.Stop()
	writes(c, writer, 20)
	poller.Reset()

	var work sync.WaitGroup
	for _, m := range all {
		work.Go(func() { c.Machine("stop", m) })
	}
	work.Wait()
	down := len(writer.Acked())
	testkit.Until(c.T, soon, "the pods have given 60 answers without a control plane", func() error {
		if _, answers, err := poller.Gap(); answers < 60 {
			return fmt.Errorf("got %d answers: %w", answers, err)
		}
		return nil
	})
	if now := len(writer.Acked()); now > down+1 {
		c.T.Errorf("got %d acknowledged writes while no control plane ran", now-down)
	}
	begun := time.Now()
	for _, m := range all {
		work.Go(func() { c.Machine("start", m) })
	}
	work.Wait()
	writer.Reset()
	writes(c, writer, 20)
	c.T.Logf("20 writes are acknowledged %.1f s after power-on", time.Since(begun).Seconds())
	c.AllReady(2*soon, mains, workers)
	c.T.Logf("all nodes are ready %.1f s after power-on", time.Since(begun).Seconds())
	writer.Stop()

	writer.CheckAcked(c)
	if diff := cmp.Diff(before, c.Identity(all...)); diff != "" {
		c.T.Errorf("cluster (- before, + after):\n%s", diff)
	}
	if diff := cmp.Diff(pods, webContainers(c, both...)); diff != "" {
		c.T.Errorf("containers of the workers (- before, + after):\n%s", diff)
	}
	uninterrupted(c, poller, "from worker to worker")
	healthyMembers(c)
}

// uninterrupted fails the test if pods did not answer for more than five seconds. Nothing that the tests stop is on the path of the
// packets, so the limit is for a loaded host.
func uninterrupted(c *kit.Cluster, poller *kit.Poller, what string) {
	c.T.Helper()
	gap, answers, err := poller.Gap()
	c.T.Logf("%s: %d answers, longest gap %.2f s", what, answers, gap.Seconds())
	if gap > 5*time.Second || answers == 0 {
		c.T.Errorf("%s: got no answer for %s, want at most 5 s: %v", what, gap, err)
	}
}

// podAddress returns the address of the workload's pod on a node.
func podAddress(c *kit.Cluster, node string) string {
	c.T.Helper()
	address := c.Kubectl("get", "pods", "--selector", "app=web", "--field-selector", "spec.nodeName="+node, "--output", "jsonpath={.items[*].status.podIP}")
	if strings.TrimSpace(address) == "" || strings.Contains(address, " ") {
		c.T.Fatalf("addresses of the pod on %s: got %q, want one", node, address)
	}
	return address
}

// cutMain cuts off the control plane with etcd's leader, which is the worst case: the others continue, and its own API server answers no
// request successfully any more.
func cutMain(c *kit.Cluster) {
	victim := c.Leader()
	writer := c.On(c.Worker(0)).WriteAPI("cut-main")
	defer writer.Stop()
	writes(c, writer, 20)
	alone := c.On(victim).APIClient(true, 2*time.Second)
	if err := kit.WriteConfigMap(c.T.Context(), alone, "cut-main-before"); err != nil {
		c.T.Fatalf("write through the API server of %s: %v", victim, err)
	}
	writer.Reset()
	c.Machine("cut", victim)
	writes(c, writer, 100)
	gap, answers, err := writer.Gap()
	c.T.Logf("leader %s cut off: longest gap between acknowledged writes %.2f s, %d writes since (last error: %v)", victim, gap.Seconds(), answers, err)
	if gap > leaderLoss {
		c.T.Errorf("got no acknowledged write for %s, want at most %s: %v", gap, leaderLoss, err)
	}
	for i := range 3 {
		if err := kit.WriteConfigMap(c.T.Context(), alone, fmt.Sprintf("cut-main-alone-%d", i)); err == nil {
			c.T.Errorf("write %d through the API server of %s, which is cut off: got success, want an error", i, victim)
		}
		if err := read(c.T.Context(), alone, "cut-main-before"); err == nil {
			c.T.Errorf("read %d through the API server of %s, which is cut off: got success, want an error: the object may be stale", i, victim)
		}
	}
	c.Machine("heal", victim)
	begun := time.Now()
	c.AllReady(soon, mains, workers)
	c.T.Logf("%s is ready again %.1f s after it was healed", victim, time.Since(begun).Seconds())
	writer.Stop()
	writer.CheckAcked(c)
	healthyMembers(c)
	testkit.Until(c.T, soon, victim+" returns the last write", func() error {
		return read(c.T.Context(), alone, writer.Acked()[len(writer.Acked())-1])
	})
}

// read gets a ConfigMap. The API server needs etcd's quorum for the answer.
func read(ctx context.Context, client *http.Client, name string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, kit.API+"/api/v1/namespaces/default/configmaps/"+name, nil)
	if err != nil {
		return err
	}
	reply, err := client.Do(r)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		return errors.New(reply.Status)
	}
	return nil
}

// partition returns how long a worker is cut off: longer than the cluster takes to notice.
func partition() time.Duration {
	if os.Getenv("SLIPWAY_E2E_LONG") != "" {
		return 10 * time.Minute
	}
	return 90 * time.Second
}

// cutWorker cuts off a worker: its pods keep serving, and it becomes ready again by itself.
func cutWorker(c *kit.Cluster) {
	victim := c.Worker(1)
	pods, address := webContainers(c, victim), podAddress(c, victim)
	inside := c.On(victim).Poll("http://" + net.JoinHostPort(address, "8081"))
	defer inside.Stop()
	inside.Reset()
	begun := time.Now()
	c.Machine("cut", victim)
	c.Wait("node/"+victim, "condition=Ready=Unknown")
	c.T.Logf("the cluster marks the node as unreachable after %.0f s", time.Since(begun).Seconds())
	testkit.Until(c.T, partition()+soon, "the partition has lasted "+partition().String(), func() error {
		if since := time.Since(begun); since < partition() {
			return fmt.Errorf("%s so far", since)
		}
		return nil
	})
	uninterrupted(c, inside, "on the worker that is cut off")
	now := c.On(victim).MustUnits()
	for _, name := range []string{"api-balancer", "containerd", "kube-proxy", "kubelet"} {
		if u := now[name]; u.PID == 0 {
			c.T.Errorf("unit %s of the worker that is cut off: got %+v, want a process", name, u)
		}
	}
	c.Machine("heal", victim)
	healed := time.Now()
	c.AllReady(soon, mains, workers)
	c.T.Logf("%s is ready again %.1f s after it was healed", victim, time.Since(healed).Seconds())
	if diff := cmp.Diff(pods, webContainers(c, victim)); diff != "" {
		c.T.Errorf("containers of the worker (- before, + after):\n%s", diff)
	}
}

// rebootAlone boots a worker and a control plane without a network: the units of their plans start, and both become ready again when the
// network is back.
func rebootAlone(c *kit.Cluster) {
	both := []string{c.Main(2), c.Worker(0)}
	c.Machine("cut", both...)
	c.Machine("stop", both...)
	c.Machine("start", both...)
	for machine, names := range map[string][]string{
		c.Main(2):   {"containerd", "etcd", "kubelet"}, // not the API server, which waits for etcd's quorum
		c.Worker(0): {"api-balancer", "containerd", "kubelet"},
	} {
		mine := c.On(machine)
		testkit.Until(c.T, soon, "the components of "+machine+" run without a network", func() error {
			now, err := mine.Units()
			for _, name := range names {
				if err == nil && now[name].PID == 0 {
					err = fmt.Errorf("unit %s: got %+v, want a process", name, now[name])
				}
			}
			return err
		})
	}
	c.Machine("heal", both...)
	healed := time.Now()
	c.AllReady(2*soon, mains, workers)
	c.T.Logf("all nodes are ready %.1f s after the network is back", time.Since(healed).Seconds())
	for _, m := range both {
		testkit.Until(c.T, soon, "the pod of "+m+" runs again", func() error {
			for _, p := range c.On(m).Processes() {
				if len(p.Args) > 1 && p.Args[1] == "serve" {
					return nil
				}
			}
			return errors.New("no such process")
		})
	}
	healthyMembers(c)
}
