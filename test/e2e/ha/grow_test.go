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

// TestGrowAndShrink makes a cluster of one machine grow to three control planes and a worker, and takes all of it away again
// but the last.
func TestGrowAndShrink(t *testing.T) {
	c := kit.New(t, "grow")
	c.MustUp("--control-planes", "1")
	for i, part := range []struct {
		name string
		test func(c *kit.Cluster)
	}{
		{"from one to three", grow},
		{"a worker leaves, and comes again", removeWorker},
		{"control planes leave", removeMains},
	} {
		if passed := c.Part(t, part.name, part.test); !passed && i < 1 {
			t.Fatal("a cluster of one cannot be made smaller")
		}
	}
}

func grow(c *kit.Cluster) {
	c.Kubectl("create", "configmap", "written-before", "--from-literal=value=kept")
	before := identity(c, c.Main(0))
	r := c.MustUp("--control-planes", "3")
	c.T.Logf("from one control plane to three in %.1f s", r.Elapsed.Seconds())
	c.AllReady(soon, 3, 0)
	if diff := cmp.Diff(before, identity(c, c.Main(0))); diff != "" {
		c.T.Errorf("cluster (- before, + after):\n%s", diff)
	}
	r = c.MustUp("--workers", "1")
	c.T.Logf("one worker more in %.1f s", r.Elapsed.Seconds())
	c.AllReady(soon, 3, 1)
	if v := c.Kubectl("get", "configmap", "written-before", "--output", "jsonpath={.data.value}"); v != "kept" {
		c.T.Errorf("what was written before holds %q", v)
	}
	healthyMembers(c)
	if r := c.MustUp(); !strings.Contains(r.Out, "nothing to do") {
		c.T.Errorf("up again: %s", r)
	}
}

// refuse runs a command that has to fail with these words.
func refuse(c *kit.Cluster, words string, args ...string) {
	c.T.Helper()
	if r := c.Slipway(args...); r.Code == 0 || !strings.Contains(r.Err, words) {
		c.T.Errorf("want a refusal with %q: %s", words, r)
	}
}

func removeWorker(c *kit.Cluster) {
	worker := c.On(c.Worker(0))
	for _, m := range c.Machines() {
		c.On(m).ImportTestImage()
	}
	c.Apply(workload)
	c.Kubectl("rollout", "status", "daemonset/web", "--timeout", "60s")
	refuse(c, "node remove "+worker.Node, "node", "reset", worker.Node, "--yes")
	worker.Process("kubelet") // still there
	key := worker.Pin()

	c.Must("node", "remove", worker.Node, "--yes")
	if nodes, err := c.Nodes(); err != nil || nodes[worker.Node].Name != "" {
		c.T.Errorf("nodes after the removal: %+v, %v", nodes, err)
	}
	if r := c.TryKubectl("", "get", "node", worker.Node); r.Code == 0 {
		c.T.Errorf("the Node is left: %s", r)
	}
	staysOut(worker)
	c.Must("node", "reset", worker.Node, "--yes")
	clean(worker)
	if worker.Pin() == key {
		c.T.Error("the machine has the identity still that was revoked")
	}

	token := c.NewToken("--pool", "worker", "--node", worker.Node)
	worker.Join(token, "--node", worker.Node)
	c.AllReady(soon, 3, 1)
	worker.Process("kubelet")
}

// staysOut: the kubelet of a removed node still has its certificate, and does not become a node again by it.
func staysOut(c *kit.Cluster) {
	c.T.Helper()
	before := len(c.Read("log", "slipway", "kubelet.log"))
	c.Kill(c.Process("kubelet"))
	testkit.Until(c.T, soon, "the next kubelet is refused as a node", func() error {
		said := string(c.Read("log", "slipway", "kubelet.log")[before:])
		if !strings.Contains(said, "Unable to register node with API server") {
			return fmt.Errorf("it says %s", said[max(0, len(said)-300):])
		}
		return nil
	})
	if r := c.TryKubectl("", "get", "node", c.Node); r.Code == 0 {
		c.T.Errorf("the removed node is back: %s", r)
	}
}

func node(c *kit.Cluster, name string) kit.Node {
	c.T.Helper()
	nodes, err := c.Nodes()
	if err != nil || nodes[name].Key == "" {
		c.T.Fatalf("node %s: %+v, %v", name, nodes[name], err)
	}
	return nodes[name]
}

// removeMains: never so many that those who are left have no majority.
func removeMains(c *kit.Cluster) {
	c.Machine("stop", c.Main(2))
	refuse(c, "voters would answer", "node", "remove", c.Main(1), "--yes", "--timeout", "20s")
	if n := node(c, c.Main(1)); n.Member != "voter" {
		c.T.Errorf("after the refusal: %+v", n)
	}
	c.Machine("start", c.Main(2))
	c.AllReady(soon, 3, 1)

	refuse(c, "node remove "+c.Main(2), "node", "reset", c.Main(2), "--yes")
	c.Must("node", "remove", c.Main(2), "--yes")
	if members := members(c); slices.Contains(members, c.Main(2)) || len(members) != 2 {
		c.T.Errorf("members after the removal of %s: %v", c.Main(2), members)
	}
	c.Must("node", "reset", c.Main(2), "--yes")
	clean(c.On(c.Main(2)))

	c.Must("node", "remove", c.Main(1), "--yes")
	c.Must("node", "reset", c.Main(1), "--yes")
	clean(c.On(c.Main(1)))
	refuse(c, "last", "node", "remove", c.Main(0), "--yes")
	refuse(c, "", "node", "reset", c.Main(0), "--yes")
	if members := members(c); len(members) != 1 || members[0] != c.Main(0) {
		c.T.Errorf("members in the end: %v", members)
	}
	if v := c.Kubectl("get", "configmap", "written-before", "--output", "jsonpath={.data.value}"); v != "kept" {
		c.T.Errorf("what was written before holds %q", v)
	}
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

// clean: of all that was made for the cluster nothing is left in the machine.
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
		// The next agent makes itself a key, perhaps just now.
		"a plan": "find /var/lib/slipway -mindepth 1 ! -type d ! -path '*/store/*' | grep -vE '/state/(lock|lock.prev|lock.flock|[.]?machine.key([.][0-9-]+[.]tmp)?)$'",
	} {
		if left := strings.TrimSpace(c.Exec("{ " + command + "; } || true")); left != "" {
			c.T.Errorf("after the reset, %s is left in %s:\n%s", what, c.Node, left)
		}
	}
	if s := c.Must("node", "reset", c.Node, "--yes"); !strings.Contains(s.Out, "free already") {
		c.T.Errorf("after the reset, %s", s)
	}
	c.T.Logf("looked at %s in %.1f s", c.Node, time.Since(begun).Seconds())
}
