// SPDX-License-Identifier: Apache-2.0

package systemd_test

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

// poweredOff shuts the machine down from within: what others need ends after them. Then somebody presses the button.
func poweredOff(c *kit.Cluster) {
	c.Kubectl("create", "configmap", "written-before", "--from-literal=value=kept")
	late := outliving(c, "etcd", "kubelet", "kube-apiserver")
	c.Exec("systemctl start --no-block halt.target")
	select {
	case programs := <-late:
		if len(programs) > 0 {
			c.T.Errorf("etcd has ended before %v", programs)
		}
	case <-time.After(2 * soon):
		c.T.Fatal("etcd does not end")
	}
	down(c)
	c.Machine("start", c.Node)
	backAgain(c)
}

func down(c *kit.Cluster) {
	c.T.Helper()
	kit.Until(c.T, soon, "the machine is down", func() error {
		s, err := c.Status()
		for _, m := range s.Machines {
			if m.Name == c.Node && m.Running {
				return fmt.Errorf("process %d runs", m.PID)
			}
		}
		return err
	})
}

// backAgain: the same cluster with what was written, by itself.
func backAgain(c *kit.Cluster) {
	c.T.Helper()
	kit.Until(c.T, 2*soon, "the cluster is ready again", func() error { return converged(c) })
	c.Healthy(soon)
	if v := c.Kubectl("get", "configmap", "written-before", "--output", "jsonpath={.data.value}"); v != "kept" {
		c.T.Errorf("the ConfigMap of before holds %q", v)
	}
	c.Wait("pod/server", "condition=Ready")
	if got := c.Exec("systemctl is-system-running --wait"); got != "running\n" {
		c.T.Errorf("the system is %s", got)
	}
}

// cutAtBoot pulls the plug and the cable, and powers the machine on without its network.
func cutAtBoot(c *kit.Cluster) {
	c.Machine("stop", c.Node)
	c.Machine("cut", c.Node)
	c.Machine("start", c.Node)
	backAgain(c)
	c.Machine("heal", c.Node)
	kit.Until(c.T, soon, "with its network back it is ready", func() error { return converged(c) })
}

// outliving sends, as soon as a program of the machine has ended, which of the others still run: those have for certain not ended
// before it, however late this process is to look.
func outliving(c *kit.Cluster, program string, others ...string) <-chan []string {
	c.T.Helper()
	last := watched(c, program)
	fds := map[string]int{}
	for _, other := range others {
		fds[other] = watched(c, other)
	}
	late := make(chan []string, 1)
	go func() {
		if is, err := ended(last, 3*soon); !is || err != nil {
			return // nothing comes, and the test says so
		}
		var running []string
		for other, fd := range fds {
			if is, err := ended(fd, 0); !is || err != nil {
				running = append(running, other)
			}
		}
		late <- running
	}()
	return late
}

// watched is a descriptor of the one process of a program.
func watched(c *kit.Cluster, program string) int {
	c.T.Helper()
	fd, err := unix.PidfdOpen(c.Process(program).PID, 0)
	if err != nil {
		c.T.Fatalf("watch %s: %v", program, err)
	}
	c.T.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func ended(fd int, limit time.Duration) (bool, error) {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(limit.Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return n > 0, err
		}
	}
}
