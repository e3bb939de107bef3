// SPDX-License-Identifier: Apache-2.0

package ha_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/testkit"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

// What a worker's client of the API bears at most (issue 3).
const (
	serverLoss = 3 * time.Second  // of an API server or of its machine
	leaderLoss = 15 * time.Second // of the machine whose etcd leads
)

// killAPIServer kills one after the other, so that whichever the worker's connections have, it is one of them. Several clients keep
// their connections, which the balancer spreads.
func killAPIServer(c *kit.Cluster) {
	readers := c.On(c.Worker(0)).ReadAPI(4, 2)
	defer readers.Stop()
	for i := range mains {
		main := c.On(c.Main(i))
		before := main.Process("kube-apiserver")
		readers.Reset()
		main.Kill(before)
		testkit.Until(c.T, soon, main.Node+" has another API server, which is ready", func() error {
			units, err := main.Units()
			if err != nil {
				return err
			}
			if u := units["kube-apiserver"]; u.PID == before.Inside || !u.Ready || u.PID == 0 {
				return fmt.Errorf("%+v", u)
			}
			return nil
		})
		served(c, readers, "the API server of "+main.Node+" was killed", serverLoss)
	}
}

// served fails when a client was without an answer for longer than that.
func served(c *kit.Cluster, readers kit.Readers, what string, limit time.Duration) {
	c.T.Helper()
	gap, answers, err := readers.Gap()
	c.T.Logf("%s: at least %d answers to each client, longest gap %.2f s (last error: %v)", what, answers, gap.Seconds(), err)
	if gap > limit || answers == 0 {
		c.T.Errorf("%s: a worker's client was without an answer for %s, want at most %s: %v", what, gap, limit, err)
	}
}

// stopFollower pulls the plug of a control plane whose etcd does not lead.
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
			return fmt.Errorf("%d answers: %w", answers, err)
		}
		return nil
	})
	readers.Reset()
	c.Machine("cut", victim) // first, so that no connection is closed with a last word
	c.Machine("stop", victim)
	testkit.Until(c.T, soon, "each client has gone on for a while", func() error {
		if _, answers, err := readers.Gap(); answers < 100 {
			return fmt.Errorf("%d answers: %w", answers, err)
		}
		return nil
	})
	served(c, readers, "the machine "+victim+" was stopped", serverLoss)
	begun := time.Now()
	c.Machine("heal", victim)
	c.Machine("start", victim)
	c.AllReady(soon, mains, workers)
	c.T.Logf("%s is back after %.1f s", victim, time.Since(begun).Seconds())
}

// stopLeader pulls the plug of the control plane whose etcd leads, while somebody writes.
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
	c.T.Logf("%s, which led, was stopped: longest gap between acknowledged writes %.2f s, %d since (last error: %v)", leader, gap.Seconds(), answers, err)
	if gap > leaderLoss {
		c.T.Errorf("no acknowledged write for %s, want at most %s: %v", gap, leaderLoss, err)
	}
	c.Machine("heal", leader)
	c.Machine("start", leader)
	c.AllReady(soon, mains, workers)
	writer.Stop()
	writer.AllThere(c)
	healthyMembers(c)
}

// writes waits until so many more writes were acknowledged since the last Reset.
func writes(c *kit.Cluster, w *kit.Writer, n int) {
	c.T.Helper()
	testkit.Until(c.T, soon, strconv.Itoa(n)+" acknowledged writes", func() error {
		if _, answers, err := w.Gap(); answers < n {
			return fmt.Errorf("%d writes: %w", answers, err)
		}
		return nil
	})
}

// healthyMembers asks every member itself.
func healthyMembers(c *kit.Cluster) {
	c.T.Helper()
	for i := range mains {
		testkit.Until(c.T, soon, fmt.Sprintf("seen from %s, all %d members are healthy", c.Main(i), mains), func() error {
			said, err := c.On(c.Main(i)).TryEtcdctl("endpoint health --cluster 2>&1")
			if err == nil && strings.Count(said, "is healthy") != mains {
				err = errors.New(said)
			}
			return err
		})
	}
}

// identity is what makes a cluster the same one: its authorities, on all control planes, and an object that is made once.
func identity(c *kit.Cluster, mains ...string) map[string]string {
	c.T.Helper()
	id := map[string]string{"kube-system": c.Kubectl("get", "namespace", "kube-system", "--output", "jsonpath={.metadata.uid}")}
	for _, m := range mains {
		for _, file := range []string{"ca.crt", "ca.key", "etcd/ca.key", "front-proxy-ca.key", "join-ca.crt", "join-ca.key", "sa.key", "encryption.key"} {
			sum := sha256.Sum256(c.On(m).Read("etc-kubernetes", "pki", file))
			id[m+"/"+file] = hex.EncodeToString(sum[:8])
		}
	}
	return id
}

// containers are those of the pods on the given nodes: id, start, restarts.
func containers(c *kit.Cluster, nodes ...string) map[string]string {
	c.T.Helper()
	found := map[string]string{}
	for _, node := range nodes {
		var pods struct {
			Items []struct {
				Metadata struct{ Name, DeletionTimestamp string }
				Status   struct {
					ContainerStatuses []struct {
						Name, ContainerID string
						RestartCount      int
					}
				}
			}
		}
		out := c.Kubectl("get", "pods", "--all-namespaces", "--field-selector", "spec.nodeName="+node, "--output", "json")
		if err := json.Unmarshal([]byte(out), &pods); err != nil {
			c.T.Fatal(err)
		}
		for _, p := range pods.Items {
			for _, s := range p.Status.ContainerStatuses {
				if p.Metadata.DeletionTimestamp == "" {
					found[node+": "+p.Metadata.Name+"/"+s.Name] = fmt.Sprintf("%s, %d restarts", s.ContainerID, s.RestartCount)
				}
			}
		}
	}
	if len(found) == 0 {
		c.T.Fatalf("no containers on %v", nodes)
	}
	return found
}

// stopAll pulls the plugs of all control planes at the same moment while somebody writes. The workers' pods go on without them.
func stopAll(c *kit.Cluster) {
	all := []string{c.Main(0), c.Main(1), c.Main(2)}
	both := []string{c.Worker(0), c.Worker(1)}
	before, pods := identity(c, all...), containers(c, both...)
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
	testkit.Until(c.T, soon, "the pods have gone on for a while without a control plane", func() error {
		if _, answers, err := poller.Gap(); answers < 60 {
			return fmt.Errorf("%d answers: %w", answers, err)
		}
		return nil
	})
	if now := len(writer.Acked()); now > down+1 {
		c.T.Errorf("%d writes were acknowledged while no control plane ran", now-down)
	}
	begun := time.Now()
	for _, m := range all {
		work.Go(func() { c.Machine("start", m) })
	}
	work.Wait()
	writer.Reset()
	writes(c, writer, 20)
	c.T.Logf("the first writes are acknowledged %.1f s after power is back", time.Since(begun).Seconds())
	c.AllReady(2*soon, mains, workers)
	c.T.Logf("all are ready %.1f s after power is back", time.Since(begun).Seconds())
	writer.Stop()

	writer.AllThere(c)
	if diff := cmp.Diff(before, identity(c, all...)); diff != "" {
		c.T.Errorf("cluster (- before, + after):\n%s", diff)
	}
	if diff := cmp.Diff(web(pods), web(containers(c, both...))); diff != "" {
		c.T.Errorf("containers of the workers (- before, + after):\n%s", diff)
	}
	unbroken(c, poller, "from worker to worker")
	healthyMembers(c)
}

// unbroken: pods have answered all the time.
func unbroken(c *kit.Cluster, poller *kit.Poller, what string) {
	c.T.Helper()
	gap, answers, err := poller.Gap()
	c.T.Logf("%s: %d answers, longest gap %.2f s", what, answers, gap.Seconds())
	if gap > 5*time.Second || answers == 0 { // nothing of what was lost lies on the path of the packets; what remains is a busy host
		c.T.Errorf("%s: no answer for %s: %v", what, gap, err)
	}
}

// podAddress is the address of the workload's pod on a node.
func podAddress(c *kit.Cluster, node string) string {
	c.T.Helper()
	address := c.Kubectl("get", "pods", "--selector", "app=web", "--field-selector", "spec.nodeName="+node, "--output", "jsonpath={.items[*].status.podIP}")
	if strings.TrimSpace(address) == "" || strings.Contains(address, " ") {
		c.T.Fatalf("addresses of the pod on %s: %q, want one", node, address)
	}
	return address
}

// cutMain cuts off the control plane whose etcd leads, which is the worst one: the others go on, and what it says afterwards is
// never a success.
func cutMain(c *kit.Cluster) {
	victim := c.Leader()
	writer := c.On(c.Worker(0)).WriteAPI("cut-main")
	defer writer.Stop()
	writes(c, writer, 20)
	alone := c.On(victim).APIClient(true, 2*time.Second)
	if err := kit.WriteConfigMap(c.T.Context(), alone, "cut-main-before"); err != nil {
		c.T.Fatalf("write through the API server of %s itself: %v", victim, err)
	}
	writer.Reset()
	c.Machine("cut", victim)
	testkit.Until(c.T, soon, "the others have another leader and go on", func() error {
		if _, answers, err := writer.Gap(); answers < 100 {
			return fmt.Errorf("%d writes: %w", answers, err)
		}
		return nil
	})
	gap, answers, err := writer.Gap()
	c.T.Logf("%s, which led, was cut off: longest gap between acknowledged writes %.2f s, %d since (last error: %v)", victim, gap.Seconds(), answers, err)
	if gap > leaderLoss {
		c.T.Errorf("no acknowledged write for %s, want at most %s: %v", gap, leaderLoss, err)
	}
	for i := range 3 {
		if err := kit.WriteConfigMap(c.T.Context(), alone, fmt.Sprintf("cut-main-alone-%d", i)); err == nil {
			c.T.Errorf("write %d through the API server of %s, which is cut off, was acknowledged", i, victim)
		}
		if err := read(c.T.Context(), alone, "cut-main-before"); err == nil {
			c.T.Errorf("read %d through the API server of %s, which is cut off, was answered: nobody knows whether that is still so", i, victim)
		}
	}
	c.Machine("heal", victim)
	begun := time.Now()
	c.AllReady(soon, mains, workers)
	c.T.Logf("%s is back %.1f s after it was healed", victim, time.Since(begun).Seconds())
	writer.Stop()
	writer.AllThere(c)
	healthyMembers(c)
	testkit.Until(c.T, soon, "what was written meanwhile is read through "+victim, func() error {
		return read(c.T.Context(), alone, writer.Acked()[len(writer.Acked())-1])
	})
}

// read asks for one object, which an API server answers from a majority of etcd only.
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

// partition is how long a worker is cut off: longer than the cluster takes to notice.
func partition() time.Duration {
	if os.Getenv("SLIPWAY_E2E_LONG") != "" {
		return 10 * time.Minute
	}
	return 90 * time.Second
}

// cutWorker: its pods keep serving, and it comes back without hands.
func cutWorker(c *kit.Cluster) {
	victim := c.Worker(1)
	pods, address := containers(c, victim), podAddress(c, victim)
	inside := c.On(victim).Poll("http://" + net.JoinHostPort(address, "8081"))
	defer inside.Stop()
	inside.Reset()
	begun := time.Now()
	c.Machine("cut", victim)
	c.Wait("node/"+victim, "condition=Ready=Unknown")
	c.T.Logf("the cluster has noticed after %.0f s", time.Since(begun).Seconds())
	testkit.Until(c.T, partition()+soon, "the time is over", func() error {
		if since := time.Since(begun); since < partition() {
			return fmt.Errorf("%s", since)
		}
		return nil
	})
	unbroken(c, inside, "on the worker that is cut off")
	now := c.On(victim).MustUnits()
	for _, name := range []string{"api-balancer", "containerd", "kube-proxy", "kubelet"} {
		if u := now[name]; u.PID == 0 {
			c.T.Errorf("unit %s of the worker that is cut off: %+v", name, u)
		}
	}
	c.Machine("heal", victim)
	healed := time.Now()
	c.AllReady(soon, mains, workers)
	c.T.Logf("%s is ready again %.1f s after it was healed", victim, time.Since(healed).Seconds())
	if diff := cmp.Diff(web(pods), web(containers(c, victim))); diff != "" {
		c.T.Errorf("containers of the worker (- before, + after):\n%s", diff)
	}
}

// web are the containers of the workload: a cluster may move others away after five minutes, and probes may end them on a busy host.
func web(all map[string]string) map[string]string {
	kept := map[string]string{}
	for name, id := range all {
		if strings.Contains(name, ": web-") {
			kept[name] = id
		}
	}
	return kept
}

// rebootAlone boots a worker and a control plane that see nobody: what their plans want runs, and they join the others again
// when they see them.
func rebootAlone(c *kit.Cluster) {
	both := []string{c.Main(2), c.Worker(0)}
	c.Machine("cut", both...)
	c.Machine("stop", both...)
	c.Machine("start", both...)
	for machine, names := range map[string][]string{
		c.Main(2):   {"containerd", "etcd", "kubelet"}, // without the others its etcd answers nobody, so its API server does not begin
		c.Worker(0): {"api-balancer", "containerd", "kubelet"},
	} {
		mine := c.On(machine)
		testkit.Until(c.T, soon, "the components of "+machine+" run without any network", func() error {
			now, err := mine.Units()
			for _, name := range names {
				if err == nil && now[name].PID == 0 {
					err = fmt.Errorf("%s: %+v", name, now[name])
				}
			}
			return err
		})
	}
	c.Machine("heal", both...)
	healed := time.Now()
	c.AllReady(2*soon, mains, workers)
	c.T.Logf("all are ready %.1f s after the network is back", time.Since(healed).Seconds())
	for _, m := range both {
		testkit.Until(c.T, soon, "the pod of "+m+" runs again", func() error {
			for _, p := range c.On(m).Processes() {
				if len(p.Args) > 1 && p.Args[1] == "serve" {
					return nil
				}
			}
			return errors.New("there is none")
		})
	}
	healthyMembers(c)
}
