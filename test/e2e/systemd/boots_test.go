// SPDX-License-Identifier: Apache-2.0

package systemd_test

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/testkit"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

// TestTogether has a control plane and a worker of slipway up, and a machine outside the spec that joins them.
func TestTogether(t *testing.T) {
	c := newCluster(t, "order")
	extra := c.Extra(0, nil)
	c.MustUp("--control-planes", "1", "--workers", "1")
	c.AllReady(2*soon, 1, 1)
	c.Part(t, "one token is all that is carried by hand", func(c *kit.Cluster) {
		extra := extra.For(c.T)
		if found := extra.Exec("find /etc/kubernetes -type f"); found != "" {
			c.T.Fatalf("files of Kubernetes before the join: got %s, want none", found)
		}
		extra.Join(c.NewToken("--pool", "worker"))
		c.AllReady(2*soon, 1, 2)
		if found := extra.Exec("find /etc/kubernetes /var/lib/kubelet/pki -name '*.key' -o -name '*.pem' | xargs grep -l PRIVATE"); !strings.Contains(found, "kubelet") {
			c.T.Errorf("private keys of the worker: got %s, want the kubelet's", found)
		}
		if found := extra.Exec("find /etc/kubernetes -name 'ca.key'"); found != "" {
			c.T.Errorf("CA keys on the worker: got %s, want none", found)
		}
	})
	all := []string{c.Main(0), c.Worker(0), extra.Node}
	c.Part(t, "in any order", func(c *kit.Cluster) { reboot(c, 2, all, 1, 2) })
	c.Part(t, "a worker without its network", func(c *kit.Cluster) {
		worker := c.On(c.Worker(0))
		c.Machine("stop", worker.Node)
		c.Machine("cut", worker.Node)
		c.Machine("start", worker.Node)
		testkit.Until(c.T, soon, "the worker's components run", func() error { _, err := worker.TryProcess("kubelet"); return err })
		c.Machine("heal", worker.Node)
		c.AllReady(3*soon, 1, 2)
	})
	for _, m := range all {
		if got := c.On(m).Exec("systemctl is-system-running --wait; systemctl --failed --plain --no-legend"); got != "running\n" {
			t.Errorf("system state and failed units of %s: got %s, want running and none", m, got)
		}
	}
}

// TestBoots boots five machines SLIPWAY_BOOTS times. Each boot takes half a minute.
func TestBoots(t *testing.T) {
	text := os.Getenv("SLIPWAY_BOOTS")
	if text == "" {
		t.Skip("takes minutes: SLIPWAY_BOOTS=10 boots five machines ten times")
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("SLIPWAY_BOOTS: %v", err)
	}
	c := newCluster(t, "boots")
	c.MustUp("--control-planes", "3", "--workers", "2")
	reboot(c, n, []string{c.Main(0), c.Main(1), c.Main(2), c.Worker(0), c.Worker(1)}, 3, 2)
}

// reboot reboots all machines several times. Each time, the same nodes, members, keys and data must be there and all nodes become ready.
func reboot(c *kit.Cluster, boots int, all []string, controlPlanes, workers int) {
	c.T.Helper()
	before := c.AllReady(3*soon, controlPlanes, workers)
	c.WriteMarker()
	dice := kit.Dice(c.T)
	for boot := range boots {
		powerCycle(c, dice, boot, all)
		begun := time.Now()
		if diff := cmp.Diff(before, c.AllReady(3*soon, controlPlanes, workers)); diff != "" {
			c.T.Fatalf("nodes (- before, + after):\n%s", diff)
		}
		c.CheckMarker()
		c.T.Logf("all nodes are ready %.1f s after the last power-on", time.Since(begun).Seconds())
	}
}

// powerCycle cuts the power of all machines and powers them on in random order, each after a random time. In the first boot the order is
// the worst one: the control plane comes last.
func powerCycle(c *kit.Cluster, dice *rand.Rand, boot int, all []string) {
	c.T.Helper()
	c.Machine("stop", all...)
	order := dice.Perm(len(all))
	if boot == 0 {
		for i := range order {
			order[i] = len(all) - 1 - i
		}
	}
	var names []string
	var starts sync.WaitGroup
	for _, i := range order {
		if boot == 0 {
			names = append(names, all[i])
			c.Machine("start", all[i])
			continue
		}
		offset := time.Duration(dice.Int64N(int64(3 * time.Second)))
		names = append(names, all[i]+" after "+offset.Round(time.Millisecond).String())
		starts.Go(func() {
			timer := time.NewTimer(offset)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-c.T.Context().Done():
			}
			if r := c.Slipway("machine", "start", all[i]); r.Code != 0 {
				c.T.Error(r)
			}
		})
	}
	starts.Wait()
	c.T.Logf("boot %d: %s", boot, strings.Join(names, ", "))
}
