// SPDX-License-Identifier: Apache-2.0

package ha_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/testkit"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

// TestGrowAndShrink grows a cluster from one machine to three control planes and a worker, and shrinks it to one machine again.
func TestGrowAndShrink(t *testing.T) {
	c := kit.New(t, "grow")
	c.MustUp("--control-planes", "1")
	for i, part := range []struct {
		name string
		test func(c *kit.Cluster)
	}{
		{"from one to three", grow},
		{"a worker leaves and joins again", removeWorker},
		{"control planes leave", removeMains},
	} {
		if passed := c.Part(t, part.name, part.test); !passed && i < 1 {
			t.Fatal("the other parts need three control planes")
		}
	}
}

func grow(c *kit.Cluster) {
	c.WriteMarker()
	before := c.Identity()
	r := c.MustUp("--control-planes", "3")
	c.T.Logf("from one control plane to three in %.1f s", r.Elapsed.Seconds())
	c.AllReady(soon, 3, 0)
	if diff := cmp.Diff(before, c.Identity()); diff != "" {
		c.T.Errorf("cluster (- before, + after):\n%s", diff)
	}
	r = c.MustUp("--workers", "1")
	c.T.Logf("one more worker in %.1f s", r.Elapsed.Seconds())
	c.AllReady(soon, 3, 1)
	c.CheckMarker()
	healthyMembers(c)
	c.UpToDate()
}

// refused runs a command that must fail with this text.
func refused(c *kit.Cluster, text string, args ...string) {
	c.T.Helper()
	if r := c.Slipway(args...); r.Code == 0 || !strings.Contains(r.Err, text) {
		c.T.Errorf("want an error with %q, got %s", text, r)
	}
}

func removeWorker(c *kit.Cluster) {
	worker := c.On(c.Worker(0))
	for _, m := range c.Machines() {
		c.On(m).ImportTestImage()
	}
	c.Apply(workload)
	c.Kubectl("rollout", "status", "daemonset/web", "--timeout", "60s")
	refused(c, "node remove "+worker.Node, "node", "reset", worker.Node, "--yes")
	worker.Process("kubelet") // still runs
	key := worker.Pin()

	c.Must("node", "remove", worker.Node, "--yes")
	if nodes, err := c.Nodes(); err != nil || nodes[worker.Node].Name != "" {
		c.T.Errorf("nodes after the removal of %s: got %+v, %v", worker.Node, nodes, err)
	}
	if r := c.TryKubectl("", "get", "node", worker.Node); r.Code == 0 {
		c.T.Errorf("Node of the removed machine: want none, got %s", r)
	}
	staysOut(worker)
	c.Must("node", "reset", worker.Node, "--yes")
	clean(worker)
	if worker.Pin() == key {
		c.T.Error("key after the reset: got the revoked one, want a new one")
	}

	token := c.NewToken("--pool", "worker", "--node", worker.Node)
	worker.Join(token, "--node", worker.Node)
	c.AllReady(soon, 3, 1)
	worker.Process("kubelet")
}

// staysOut restarts the kubelet of a removed node: its certificate is still valid, but it cannot register the node again.
func staysOut(c *kit.Cluster) {
	c.T.Helper()
	before := len(c.Read("log", "slipway", "kubelet.log"))
	c.Kill(c.Process("kubelet"))
	testkit.Until(c.T, soon, "the next kubelet cannot register its node", func() error {
		log := string(c.Read("log", "slipway", "kubelet.log")[before:])
		if !strings.Contains(log, "Unable to register node with API server") { // the kubelet's text
			return fmt.Errorf("its log ends with %s", log[max(0, len(log)-300):])
		}
		return nil
	})
	if r := c.TryKubectl("", "get", "node", c.Node); r.Code == 0 {
		c.T.Errorf("removed Node: want none, got %s", r)
	}
}

func node(c *kit.Cluster, name string) kit.Node {
	c.T.Helper()
	nodes, err := c.Nodes()
	if err != nil || nodes[name].Key == "" {
		c.T.Fatalf("node %s: got %+v, %v", name, nodes[name], err)
	}
	return nodes[name]
}

// removeMains removes control planes, but never so many that etcd loses its quorum.
func removeMains(c *kit.Cluster) {
	c.Machine("stop", c.Main(2))
	refused(c, "voters is healthy", "node", "remove", c.Main(1), "--yes", "--timeout", "20s")
	if n := node(c, c.Main(1)); n.Member != "voter" {
		c.T.Errorf("member of %s after the refusal: got %+v, want a voter", c.Main(1), n)
	}
	c.Machine("start", c.Main(2))
	c.AllReady(soon, 3, 1)

	refused(c, "node remove "+c.Main(2), "node", "reset", c.Main(2), "--yes")
	c.Must("node", "remove", c.Main(2), "--yes")
	if members := members(c); slices.Contains(members, c.Main(2)) || len(members) != 2 {
		c.T.Errorf("members after the removal of %s: got %v, want the two others", c.Main(2), members)
	}
	c.Must("node", "reset", c.Main(2), "--yes")
	clean(c.On(c.Main(2)))

	c.Must("node", "remove", c.Main(1), "--yes")
	c.Must("node", "reset", c.Main(1), "--yes")
	clean(c.On(c.Main(1)))
	refused(c, "last", "node", "remove", c.Main(0), "--yes")
	refused(c, "", "node", "reset", c.Main(0), "--yes")
	if members := members(c); len(members) != 1 || members[0] != c.Main(0) {
		c.T.Errorf("members: got %v, want only %s", members, c.Main(0))
	}
	c.CheckMarker()
}

func members(c *kit.Cluster) (names []string) {
	c.T.Helper()
	for line := range strings.Lines(c.Etcdctl("member list")) {
		if f := strings.Split(line, ", "); len(f) > 2 {
			names = append(names, f[2])
		}
	}
	return names
}

// clean fails the test if anything of the cluster is left in the machine.
func clean(c *kit.Cluster) {
	c.T.Helper()
	begun := time.Now()
	for what, command := range map[string]string{
		"a process": "ps -eo args | grep -E '^(/opt/slipway/bin/|/pause|/coredns|/testpod|/var/lib/slipway/store)' | grep -v '^/opt/slipway/bin/slipway \\(agent\\|machine-init\\)'",
		"a mount":   "grep -E ' (/run/netns|/run/containerd|/var/lib/(kubelet|containerd))/' /proc/mounts",
		"a link":    "ip -oneline link | grep -vE ': (lo|eth0)[:@]'",
		"a route":   "ip route show proto 93; ip route | grep 10.244",
		"a table":   "nft list tables",
		"a cgroup":  "find /sys/fs/cgroup -mindepth 2 -type d \\( -path '*/slipway/*' -o -name 'kubepods*' \\)",
		"a file": "find /etc/kubernetes /etc/cni /opt/cni /var/lib/etcd /var/lib/kubelet /var/lib/containerd /var/lib/cni /etc/containerd " +
			"/var/log/pods /var/log/containers -mindepth 1 ! -type d 2>/dev/null",
		"a program": "find /opt/slipway/bin -type l; find /opt/slipway/bin -type f ! -name slipway",
		// The next agent may be creating its key.
		"a plan": "find /var/lib/slipway -mindepth 1 ! -type d ! -path '*/store/*' | grep -vE '/state/(lock|lock.prev|lock.flock|[.]?machine.key([.][0-9-]+[.]tmp)?)$'",
	} {
		if left := strings.TrimSpace(c.Exec("{ " + command + "; } || true")); left != "" {
			c.T.Errorf("after the reset of %s, %s is left:\n%s", c.Node, what, left)
		}
	}
	if r := c.Must("node", "reset", c.Node, "--yes"); !strings.Contains(r.Out, "nothing to reset") {
		c.T.Errorf("second reset: want \"nothing to reset\", got %s", r)
	}
	c.T.Logf("checked %s in %.1f s", c.Node, time.Since(begun).Seconds())
}
