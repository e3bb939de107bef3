// SPDX-License-Identifier: Apache-2.0

package kill_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/testkit"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

// powerCut kills all processes of the machine at once. The next up brings back the same cluster with the same data.
func powerCut(c *kit.Cluster) {
	c.WriteMarker()
	before := c.Identity()
	c.KillMachines()
	testkit.Until(c.T, time.Minute, "the machine is down", func() error {
		s, err := c.Status()
		if err == nil && s.Machines[0].Running {
			err = errors.New("it still runs")
		}
		return err
	})
	c.MustUp()
	c.Healthy(time.Minute)
	if diff := cmp.Diff(before, c.Identity()); diff != "" {
		c.T.Errorf("cluster (- before, + after):\n%s", diff)
	}
	c.CheckMarker()
	c.Wait("deployment/web", "condition=Available")
	works(c, "after-power-cut")
}

// TestInterrupt sends SIGINT at several moments of the first up. The command exits soon, and the next up continues.
func TestInterrupt(t *testing.T) {
	c := kit.New(t, "interrupt")
	seen := map[string]string{}
	for _, moment := range []string{
		filepath.Join(c.Dir(), "state.json"), c.Data("slipway", "plan", "plan.json"), c.Data("etc-kubernetes", "pki", "ca.crt"),
		c.Data("etcd", "member"), c.Kubeconfig(),
	} {
		cmd := c.Start("up")
		cmd.WaitForOutput(t)
		testkit.Until(t, 2*time.Minute, moment+" exists", func() error { _, err := os.Stat(moment); return err })
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		err := cmd.Wait()
		var exit *exec.ExitError
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("SIGINT after %s exists: got exit after %s, want at most 10 s", filepath.Base(moment), took)
		}
		finished := strings.Contains(cmd.Output(), "is ready") || strings.Contains(cmd.Output(), "is up to date") // before the signal
		if !errors.As(err, &exit) && !finished && moment != c.Kubeconfig() || exit != nil && exit.ExitCode() != 130 {
			t.Errorf("SIGINT after %s exists: got %v, want exit code 130\n%s", filepath.Base(moment), err, cmd.Output())
		}
		if exit != nil && exit.Sys().(syscall.WaitStatus).Signaled() {
			t.Errorf("SIGINT after %s exists: got %v, want an orderly exit", filepath.Base(moment), exit)
		}
		now := c.Authorities()
		if files := kit.Changed(seen, now); len(files) > 0 {
			t.Errorf("SIGINT after %s exists: changed: %v, want none", filepath.Base(moment), files)
		}
		seen = now
	}
	c.MustUp()
	c.Healthy(time.Minute)
	if diff := cmp.Diff(seen, c.Authorities()); len(seen) > 0 && diff != "" {
		t.Errorf("key material (- before, + after):\n%s", diff)
	}
}

// moments lists files that appear in this order during a boot.
func moments(c *kit.Cluster) []string {
	return []string{
		filepath.Join(c.Dir(), "state.json"), c.Data("slipway", "plan", "plan.json"), c.Data("etc-kubernetes", "pki", "ca.key"),
		c.Data("etc-kubernetes", "pki", "encryption.key"), c.Data("etcd", "member", "wal"), c.Data("kubelet", "pki"),
	}
}

// TestRoughBoot kills the machine and the command at several moments of the first boot.
func TestRoughBoot(t *testing.T) {
	c := kit.New(t, "rough")
	seen := map[string]string{}
	for _, moment := range moments(c) {
		cmd := c.Start("up")
		testkit.Until(t, 2*time.Minute, moment+" exists", func() error { _, err := os.Stat(moment); return err })
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		if s, err := c.Status(); err == nil && len(s.Machines) == 1 && s.Machines[0].PID != 0 {
			_ = unix.Kill(s.Machines[0].PID, unix.SIGKILL) // it may not have started
		}
		now := c.Authorities()
		if files := kit.Changed(seen, now); len(files) > 0 {
			t.Errorf("killed after %s exists: changed: %v, want none", filepath.Base(moment), files)
		}
		seen = now
	}
	c.MustUp()
	c.Healthy(time.Minute)
	if files := kit.Changed(seen, c.Authorities()); len(files) > 0 {
		t.Errorf("after the last up: changed: %v, want none", files)
	}
}

// TestMachineDiesUnderUp kills the machine while up runs. The command starts the machine again and succeeds.
func TestMachineDiesUnderUp(t *testing.T) {
	c := kit.New(t, "rough")
	cmd := c.Start("up")
	moment := c.Data("etcd", "member", "wal")
	testkit.Until(t, 2*time.Minute, moment+" exists", func() error { _, err := os.Stat(moment); return err })
	before := c.Authorities()
	c.KillMachines()
	if err := cmd.Wait(); err != nil {
		t.Errorf("up: %v\n%s", err, cmd.Output())
	}
	c.Healthy(time.Minute)
	if diff := cmp.Diff(before, c.Authorities()); diff != "" {
		t.Errorf("key material (- before, + after):\n%s", diff)
	}
}

// TestRoughRun runs two ups at the same time, and kills several things at once in a running cluster.
func TestRoughRun(t *testing.T) {
	c := kit.New(t, "rough")
	first, second := c.Start("up"), c.Start("up")
	if err := errors.Join(first.Wait(), second.Wait()); err != nil {
		t.Fatalf("two ups at once: %v\n%s%s", err, first.Output(), second.Output())
	}
	c.Healthy(30 * time.Second)

	c.Part(t, "all components at once", func(c *kit.Cluster) {
		before := c.MustUnits()
		for _, name := range kit.Components() {
			c.Kill(c.Process(name))
		}
		testkit.Until(c.T, time.Minute, "all components run again", func() error {
			now, err := c.Units()
			for name, u := range now {
				if u.PID == before[name].PID || !u.Ready {
					return fmt.Errorf("unit %s is not ready: %+v", name, u)
				}
			}
			return err
		})
		c.Healthy(time.Minute)
		c.UpToDate()
	})
	c.Part(t, "the agent and everything else", func(c *kit.Cluster) {
		c.Kill(c.Process("slipway", "agent"))
		for _, name := range kit.Components() {
			c.Kill(c.Process(name))
		}
		c.MustUp()
		c.Healthy(time.Minute)
		for _, name := range kit.Components() {
			c.Process(name) // fails if there are two
		}
	})
	c.Part(t, "the API proxy", func(c *kit.Cluster) {
		before, err := os.ReadFile(c.Kubeconfig())
		if err != nil {
			c.T.Fatal(err)
		}
		killProxy(c)
		if r := c.Slipway("kubectl", "get", "nodes"); r.Code != 0 {
			c.T.Error(r)
		}
		after, err := os.ReadFile(c.Kubeconfig())
		if err != nil {
			c.T.Fatal(err)
		}
		if diff := cmp.Diff(string(before), string(after)); diff != "" {
			c.T.Errorf("kubeconfig after the proxy's restart: copies of it must stay valid (- before, + after):\n%s", diff)
		}
		c.Kubectl("get", "nodes")
	})
	c.Part(t, "down, killed half-way", func(c *kit.Cluster) {
		cmd := c.Start("down")
		pid := c.Process("slipway", "agent").PID
		testkit.Until(c.T, time.Minute, "the agent has exited", func() error {
			if unix.Kill(pid, 0) == nil {
				return errors.New("it still runs")
			}
			return nil
		})
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		c.Down()
		for _, dir := range []string{"machines", "clusters", "locks"} {
			if _, err := os.Lstat(filepath.Join(kit.Root, dir, c.Name)); !os.IsNotExist(err) {
				c.T.Errorf("after down, the cluster's directory in %s is left: %v", dir, err)
			}
		}
	})
}

// killProxy kills the process on this host that forwards connections to the cluster's API.
func killProxy(c *kit.Cluster) {
	c.T.Helper()
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		line, _ := os.ReadFile(file) // it may have ended
		args := strings.Split(string(line), "\x00")
		if len(args) > 1 && args[1] == "proxy-serve" && strings.Contains(string(line), "/"+c.Name+"/") {
			var pid int
			if _, err := fmt.Sscanf(file, "/proc/%d/cmdline", &pid); err != nil {
				c.T.Fatal(err)
			}
			c.Kill(kit.Process{PID: pid, Args: args})
			testkit.Until(c.T, 10*time.Second, "the killed proxy no longer listens", func() error {
				if left, err := os.ReadFile(file); err == nil && len(left) > 0 {
					return errors.New("it still exists")
				}
				return nil
			})
			return
		}
	}
	c.T.Fatal("find API proxy of the cluster: no such process on this host")
}

// TestPowerCutAtFirstLog kills the machine when etcd has created its log but has not written to it, so that etcd cannot recover from it.
func TestPowerCutAtFirstLog(t *testing.T) {
	c := kit.New(t, "rough")
	cmd := c.Start("up")
	pid := 0
	testkit.Until(t, time.Minute, "the machine runs", func() error {
		s, err := c.Status()
		if err != nil || len(s.Machines) != 1 || s.Machines[0].PID == 0 {
			return fmt.Errorf("status: %+v, %w", s, err)
		}
		pid = s.Machines[0].PID
		return nil
	})
	limit, tick := time.After(time.Minute), time.NewTicker(100*time.Microsecond) // the log is empty for a short time only
	defer tick.Stop()
	for logs := []string(nil); len(logs) == 0; {
		select {
		case <-tick.C:
			logs, _ = filepath.Glob(c.Data("etcd", "member", "wal", "*.wal"))
		case <-limit:
			t.Fatal("timed out after one minute waiting for etcd's log")
		}
	}
	c.Kill(kit.Process{PID: pid, Args: []string{"PID 1 of " + c.Node}})
	if err := cmd.Wait(); err != nil {
		t.Errorf("up: %v\n%s", err, cmd.Output())
	}
	c.Healthy(time.Minute)
}
