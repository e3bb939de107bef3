// SPDX-License-Identifier: Apache-2.0

package kill_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
	kit.Until(c.T, time.Minute, "the machine is down", func() error {
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
		kit.Until(t, 2*time.Minute, moment+" exists", func() error { _, err := os.Stat(moment); return err })
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
