// SPDX-License-Identifier: Apache-2.0

package ha_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

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
	kit.Until(c.T, soon, "the pods have gone on for a while without a control plane", func() error {
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
