// SPDX-License-Identifier: Apache-2.0

package kill_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
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

// identity is what makes a cluster the same one.
func identity(c *kit.Cluster) map[string]string {
	c.T.Helper()
	id := authorities(c)
	id["kube-system"] = c.Kubectl("get", "namespace", "kube-system", "--output", "jsonpath={.metadata.uid}")
	return id
}

// authorities are the digests of the files that must never be made a second time.
func authorities(c *kit.Cluster) map[string]string {
	c.T.Helper()
	id := map[string]string{}
	for _, file := range []string{"ca.crt", "ca.key", "etcd/ca.crt", "etcd/ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "sa.key", "sa.pub", "encryption.key"} {
		text, err := os.ReadFile(filepath.Join(c.Data("etc-kubernetes", "pki"), file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			c.T.Fatal(err)
		}
		sum := sha256.Sum256(text)
		id[file] = hex.EncodeToString(sum[:8])
	}
	return id
}

// powerCut pulls the machine's plug: every process is gone at once. up brings the same cluster with the same data.
func powerCut(c *kit.Cluster) {
	c.Kubectl("create", "configmap", "written-before", "--from-literal=value=kept")
	before := identity(c)
	s, err := c.Status()
	if err != nil || len(s.Machines) != 1 || s.Machines[0].PID == 0 {
		c.T.Fatalf("status: %+v, %v", s, err)
	}
	c.Kill(kit.Process{PID: s.Machines[0].PID, Args: []string{"PID 1 of " + c.Node}})
	testkit.Until(c.T, time.Minute, "the machine is down", func() error {
		s, err := c.Status()
		if err == nil && s.Machines[0].Running {
			err = errors.New("it runs")
		}
		return err
	})
	c.MustUp()
	c.Healthy(time.Minute)
	if diff := cmp.Diff(before, identity(c)); diff != "" {
		c.T.Errorf("cluster (- before, + after):\n%s", diff)
	}
	if v := c.Kubectl("get", "configmap", "written-before", "--output", "jsonpath={.data.value}"); v != "kept" {
		c.T.Errorf("the ConfigMap of before holds %q", v)
	}
	c.Wait("deployment/web", "condition=Available")
	works(c, "after-power-cut")
}

// TestInterrupt presses Ctrl-C at several moments of the first up. It ends at once, and the next one continues.
func TestInterrupt(t *testing.T) {
	c := kit.New(t, "interrupt")
	seen := map[string]string{}
	for _, moment := range []string{
		filepath.Join(c.Folder(), "state.json"), c.Data("slipway", "plan", "plan.json"), c.Data("etc-kubernetes", "pki", "ca.crt"),
		c.Data("etcd", "member"), c.Kubeconfig(),
	} {
		cmd := c.Start("up")
		cmd.Speaks(t)
		testkit.Until(t, 2*time.Minute, moment+" exists", func() error { _, err := os.Stat(moment); return err })
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		err := cmd.Wait()
		var exit *exec.ExitError
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("Ctrl-C when %s existed: it took %s to end", filepath.Base(moment), took)
		}
		finished := strings.Contains(cmd.Said(), "is ready") || strings.Contains(cmd.Said(), "is up to date") // it went on between two tries
		if !errors.As(err, &exit) && !finished && moment != c.Kubeconfig() || exit != nil && exit.ExitCode() != 130 {
			t.Errorf("Ctrl-C when %s existed: %v, want exit code 130\n%s", filepath.Base(moment), err, cmd.Said())
		}
		if exit != nil && exit.Sys().(syscall.WaitStatus).Signaled() {
			t.Errorf("Ctrl-C when %s existed: %v, want an orderly end", filepath.Base(moment), exit)
		}
		now := authorities(c)
		for file, sum := range seen {
			if now[file] != sum {
				t.Errorf("Ctrl-C when %s existed: %s changed", filepath.Base(moment), file)
			}
		}
		seen = now
	}
	c.MustUp()
	c.Healthy(time.Minute)
	if diff := cmp.Diff(seen, authorities(c)); len(seen) > 0 && diff != "" {
		t.Errorf("key material (- before, + after):\n%s", diff)
	}
}

// moments of a boot, told by the file that appears then.
func moments(c *kit.Cluster) []string {
	return []string{
		filepath.Join(c.Folder(), "state.json"), c.Data("slipway", "plan", "plan.json"), c.Data("etc-kubernetes", "pki", "ca.key"),
		c.Data("etc-kubernetes", "pki", "encryption.key"), c.Data("etcd", "member", "wal"), c.Data("kubelet", "pki"),
	}
}

// TestRoughBoot pulls the plug of the machine at several moments of its first boot, and of the command with it.
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
		now := authorities(c)
		for file, sum := range seen {
			if now[file] != sum {
				t.Errorf("cut when %s existed: %s changed", filepath.Base(moment), file)
			}
		}
		seen = now
	}
	c.MustUp()
	c.Healthy(time.Minute)
	for file, sum := range authorities(c) {
		if seen[file] != "" && seen[file] != sum {
			t.Errorf("%s changed in the end", file)
		}
	}
}

// TestMachineDiesUnderUp: the command that is at work starts it again and ends well.
func TestMachineDiesUnderUp(t *testing.T) {
	c := kit.New(t, "rough")
	cmd := c.Start("up")
	moment := c.Data("etcd", "member", "wal")
	testkit.Until(t, 2*time.Minute, moment+" exists", func() error { _, err := os.Stat(moment); return err })
	s, err := c.Status()
	if err != nil || len(s.Machines) != 1 || s.Machines[0].PID == 0 {
		t.Fatalf("status: %+v, %v", s, err)
	}
	before := authorities(c)
	c.Kill(kit.Process{PID: s.Machines[0].PID, Args: []string{"PID 1 of " + c.Node}})
	if err := cmd.Wait(); err != nil {
		t.Errorf("up: %v\n%s", err, cmd.Said())
	}
	c.Healthy(time.Minute)
	if diff := cmp.Diff(before, authorities(c)); diff != "" {
		t.Errorf("key material (- before, + after):\n%s", diff)
	}
}

// TestRoughRun does what nobody should do to a running cluster, and what happens all the same.
func TestRoughRun(t *testing.T) {
	c := kit.New(t, "rough")
	first, second := c.Start("up"), c.Start("up")
	if err := errors.Join(first.Wait(), second.Wait()); err != nil {
		t.Fatalf("two ups at once: %v\n%s%s", err, first.Said(), second.Said())
	}
	c.Healthy(30 * time.Second)

	c.Part(t, "all components at once", func(c *kit.Cluster) {
		before := c.MustUnits()
		for _, name := range kit.Components() {
			c.Kill(c.Process(name))
		}
		testkit.Until(c.T, time.Minute, "all run again", func() error {
			now, err := c.Units()
			for name, u := range now {
				if u.PID == before[name].PID || !u.Ready {
					return fmt.Errorf("%s: %+v", name, u)
				}
			}
			return err
		})
		c.Healthy(time.Minute)
		if r := c.MustUp(); !strings.Contains(r.Out, "nothing to do") {
			c.T.Errorf("up after it: %s", r)
		}
	})
	c.Part(t, "the agent and everything else", func(c *kit.Cluster) {
		c.Kill(c.Process("slipway", "agent"))
		for _, name := range kit.Components() {
			c.Kill(c.Process(name))
		}
		c.MustUp()
		c.Healthy(time.Minute)
		for _, name := range kit.Components() {
			c.Process(name) // one, not two
		}
	})
	c.Part(t, "the way to the API", func(c *kit.Cluster) {
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
			c.T.Error("the kubeconfig that users have copied is void: another proxy listens at another port")
		}
		c.Kubectl("get", "nodes")
	})
	c.Part(t, "down, killed half-way", func(c *kit.Cluster) {
		cmd := c.Start("down")
		pid := c.Process("slipway", "agent").PID
		testkit.Until(c.T, time.Minute, "the agent is gone", func() error {
			if unix.Kill(pid, 0) == nil {
				return errors.New("it runs")
			}
			return nil
		})
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		c.Down()
		for _, folder := range []string{"machines", "clusters", "locks"} {
			if _, err := os.Lstat(filepath.Join(kit.Root, folder, c.Name)); !os.IsNotExist(err) {
				c.T.Errorf("%s of the cluster is left", folder)
			}
		}
	})
}

// killProxy ends the process on this host that leads to the cluster's API.
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
					return errors.New("it is still ending")
				}
				return nil
			})
			return
		}
	}
	c.T.Fatal("no process of this host is the proxy to the cluster")
}

// TestPowerCutAtFirstLog pulls the plug when etcd has made its log and has written nothing into it: nothing that it could go on from.
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
	limit, look := time.After(time.Minute), time.NewTicker(100*time.Microsecond) // the moment is short
	defer look.Stop()
	for logs := []string(nil); len(logs) == 0; {
		select {
		case <-look.C:
			logs, _ = filepath.Glob(c.Data("etcd", "member", "wal", "*.wal"))
		case <-limit:
			t.Fatal("etcd makes no log")
		}
	}
	c.Kill(kit.Process{PID: pid, Args: []string{"PID 1 of " + c.Node}})
	if err := cmd.Wait(); err != nil {
		t.Errorf("up: %v\n%s", err, cmd.Said())
	}
	c.Healthy(time.Minute)
}
