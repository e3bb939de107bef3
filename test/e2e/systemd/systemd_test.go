// SPDX-License-Identifier: Apache-2.0

// Package systemd_test boots machines whose first process is systemd, as on most hosts, and tells the stories of one machine and of
// several: what is there after the boot, without anybody's help, and what dies without harm.
package systemd_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

const soon = time.Minute // far more than anything here takes

func newCluster(t *testing.T, story string) *kit.Cluster {
	t.Helper()
	c := kit.New(t, story)
	c.Init = machine.Systemd
	return c
}

// TestOneMachine boots once; the parts build on each other in this order.
func TestOneMachine(t *testing.T) {
	c := newCluster(t, "systemd")
	if _, err := os.Lstat(c.Data("etc-kubernetes")); !os.IsNotExist(err) {
		t.Fatalf("there are secrets before the first boot: %v", err)
	}
	c.MustUp()
	for i, part := range []struct {
		name string
		test func(c *kit.Cluster)
	}{
		{"the node is ready when up says so", nodeIsReady},
		{"a pod runs and names resolve", podsAndNames},
		{"rights are asked for", rights},
		{"nothing has failed, and nothing of the host's runs", cleanBoot},
		{"another up changes nothing", upAgain},
		{"another init is refused", otherInit},
		{"the agent dies", agentDies},
		{"the machine goes down in order", poweredOff},
		{"the network is cut at boot", cutAtBoot},
	} {
		if !c.Part(t, part.name, part.test) && i < 2 {
			t.Fatal("without pods there is nothing to tell")
		}
	}
}

// nodeIsReady asks once for the node, without waiting: up's end is the one handle that one waits for. A deployment is counted later.
func nodeIsReady(c *kit.Cluster) {
	const isReady = `jsonpath={.status.conditions[?(@.type=="Ready")].status}`
	if got := c.Kubectl("get", "node", c.Node, "--output", isReady); got != "True" {
		c.T.Errorf("the node is ready: %q", got)
	}
	kit.Until(c.T, soon, "CoreDNS is ready", func() error {
		r := c.TryKubectl("", "get", "deployment", "coredns", "--namespace", "kube-system", "--output", "jsonpath={.status.readyReplicas}")
		if r.Code != 0 || r.Out != "1" {
			return errors.New(r.String())
		}
		return nil
	})
}

// cleanBoot asks systemd what it thinks of its machine.
func cleanBoot(c *kit.Cluster) {
	kit.Until(c.T, soon, "the handles are reached", func() error {
		if r := c.TryExec(nil, "systemctl is-active slipway.target slipway-cluster.target"); r.Code != 0 {
			return errors.New(r.String())
		}
		return nil
	})
	tree := "slipway.target\n"
	for _, name := range kit.Components() {
		tree += "slipway-" + name + ".service\n"
	}
	if diff := cmp.Diff(tree, c.Exec("systemctl list-dependencies --plain slipway.target | tr -d '● '")); diff != "" {
		c.T.Errorf("slipway.target:\n%s", diff)
	}
	for command, want := range map[string]string{
		"systemctl is-system-running --wait":                                                            "running\n",
		"systemctl --failed --plain --no-legend":                                                        "",
		"systemctl is-enabled slipway-agent.service":                                                    "enabled\n",
		"systemctl show --property NRestarts slipway-agent.service":                                     "NRestarts=0\n",
		"systemctl list-units --plain --no-legend --type=timer,path,automount,swap":                     "",
		"systemctl list-units --plain --no-legend --type=socket | cut -d' ' -f1":                        "dbus.socket\nsystemd-journald.socket\n",
		"systemctl list-units --plain --no-legend --type=service | grep -v '^slipway-' | cut -d' ' -f1": "systemd-journald.service\n",
	} {
		if diff := cmp.Diff(want, c.Exec(command)); diff != "" {
			c.T.Errorf("%s:\n%s", command, diff)
		}
	}
}

func upAgain(c *kit.Cluster) {
	before := pids(c)
	if r := c.MustUp(); !strings.Contains(r.Out, "nothing to do") {
		c.T.Errorf("second up: %s", r)
	}
	c.Init = "" // what the machine has
	if r := c.MustUp(); !strings.Contains(r.Out, "nothing to do") {
		c.T.Errorf("up without --init: %s", r)
	}
	if diff := cmp.Diff(before, pids(c)); diff != "" {
		c.T.Errorf("processes (- before, + after):\n%s", diff)
	}
}

func otherInit(c *kit.Cluster) {
	c.Init = machine.OwnInit
	if r := c.Up(); r.Code == 0 || !strings.Contains(r.Err, "keeps the init") || !strings.Contains(r.Err, "slipway down") {
		c.T.Errorf("up --init slipway: %s", r)
	}
	if r := c.Must("machine", "list", "--output", "json"); !strings.Contains(r.Out, `"init": "systemd"`) {
		c.T.Error(r)
	}
}

// agentDies kills the agent, and has systemd restart it: the components do not notice.
func agentDies(c *kit.Cluster) {
	before := pids(c)
	agent := c.Process("slipway", "agent")
	c.Kill(agent)
	again(c, agent)
	agent = c.Process("slipway", "agent")
	c.Exec("systemctl restart slipway-agent.service")
	again(c, agent)
	c.Healthy(soon)
	if diff := cmp.Diff(before, pids(c)); diff != "" {
		c.T.Errorf("processes (- before, + after):\n%s", diff)
	}
	if got := c.Exec("systemctl is-system-running --wait"); got != "running\n" {
		c.T.Errorf("the system is %s", got)
	}
}

// again waits for another agent, and until it has looked at everything.
func again(c *kit.Cluster, before kit.Process) {
	c.T.Helper()
	kit.Until(c.T, soon, "another agent runs, and has nothing to do", func() error {
		now, err := c.TryProcess("slipway", "agent")
		if err != nil || now.PID == before.PID {
			return errors.Join(err, fmt.Errorf("agent %d", now.PID))
		}
		return converged(c)
	})
}

func converged(c *kit.Cluster) error {
	s, err := c.Status()
	if err == nil && !s.Ready {
		err = errors.New(s.Verdict)
	}
	return err
}

// pids are the components' processes, but for those that may end by themselves.
func pids(c *kit.Cluster) map[string]int {
	c.T.Helper()
	units, err := c.Units()
	if err != nil {
		c.T.Fatal(err)
	}
	return kit.Steady(units)
}
