// SPDX-License-Identifier: Apache-2.0

package systemd_test

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

// poweredOff shuts the machine down from within: what others need ends after them. Then somebody presses the button.
func poweredOff(c *kit.Cluster) {
	c.Kubectl("create", "configmap", "written-before", "--from-literal=value=kept")
	ends := map[string]<-chan time.Time{}
	for _, program := range []string{"kubelet", "kube-apiserver", "etcd"} {
		ends[program] = ending(c, c.Process(program))
	}
	c.Exec("systemctl start --no-block halt.target")
	at := map[string]time.Time{}
	for program, end := range ends {
		select {
		case at[program] = <-end:
		case <-time.After(soon):
			c.T.Fatalf("%s does not end", program)
		}
	}
	for _, pair := range [][2]string{{"kubelet", "etcd"}, {"kube-apiserver", "etcd"}} {
		if gap := at[pair[1]].Sub(at[pair[0]]); gap < 5*time.Millisecond { // all at once is no order
			c.T.Errorf("%s ended %v after %s", pair[1], gap, pair[0])
		}
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
	if err := converged(c); err != nil {
		c.T.Errorf("with its network back: %v", err)
	}
}

// ending tells when a process of the machine has ended.
func ending(c *kit.Cluster, p kit.Process) <-chan time.Time {
	c.T.Helper()
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		c.T.Fatalf("watch %s: %v", p.Args[0], err)
	}
	file := os.NewFile(uintptr(fd), p.Args[0])
	c.T.Cleanup(func() { file.Close() })
	end := make(chan time.Time, 1)
	go func() {
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int((2 * soon).Milliseconds()))
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err == nil && n > 0 {
				end <- time.Now()
			}
			return
		}
	}()
	return end
}
