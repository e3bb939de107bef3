// SPDX-License-Identifier: Apache-2.0

// Package host_test looks at the host before, during and after a cluster: it is the same.
package host_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

func TestHostUntouched(t *testing.T) {
	c := kit.New(t, "host")
	before := look(t, c)

	c.MustUp()
	c.ImportTestImage()
	c.Apply(busy)
	c.Wait("deployment/web", "condition=Available")
	during := look(t, c)
	for aspect := range before {
		switch aspect {
		case "mounts", "cgroups", "run": // the machine's own are there; what is foreign is not touched
			for _, line := range before[aspect] {
				if !slices.Contains(during[aspect], line) {
					t.Errorf("while the cluster runs, this is gone from the host's %s: %s", aspect, line)
				}
			}
			for _, line := range during[aspect] {
				if !slices.Contains(before[aspect], line) && !strings.Contains(line, c.Name) && !ours(line) {
					t.Errorf("while the cluster runs, this is new in the host's %s and does not name the cluster: %s", aspect, line)
				}
			}
		default:
			if diff := cmp.Diff(before[aspect], during[aspect]); diff != "" {
				t.Errorf("while the cluster runs, the host's %s differs:\n%s", aspect, diff)
			}
		}
	}
	if unlike := cmp.Diff(before["mounts"], during["mounts"]); unlike == "" {
		t.Error("a running machine shows in no mount: the test looks at the wrong place")
	}

	c.Down()
	after := look(t, c)
	for aspect := range before {
		if diff := cmp.Diff(before[aspect], after[aspect]); diff != "" {
			t.Errorf("after down, the host's %s differs (- before, + after):\n%s", aspect, diff)
		}
	}
	leftovers(t, c)
}

// ours are folders that all clusters of this host share; the last down removes them, which the look after it shows.
func ours(line string) bool {
	return strings.HasSuffix(line, "/slipway") || strings.Contains(line, "/slipway-") || strings.Contains(line, "/slipway/")
}

// leftovers looks for whatever still carries the cluster's name.
func leftovers(t *testing.T, c *kit.Cluster) {
	for _, folder := range []string{"machines", "clusters", "locks"} {
		if _, err := os.Lstat(filepath.Join(kit.Root, folder, c.Name)); !os.IsNotExist(err) {
			t.Errorf("%s of the cluster is left: %v", folder, err)
		}
	}
	kit.Until(t, 30*time.Second, "no process is left; the host's own init may still have to reap one", func() error { return processes(c) })
	for _, file := range []string{"/proc/net/unix", "/proc/self/mountinfo"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, c.Name) {
				t.Errorf("%s still has %s", file, line)
			}
		}
	}
	for _, pattern := range []string{"/run/*", "/run/*/*", "/tmp/*", "/var/tmp/*", "/var/run/*", "/dev/shm/*", "/sys/fs/bpf/*"} {
		found, _ := filepath.Glob(pattern)
		for _, path := range found {
			if strings.Contains(path, c.Name) {
				t.Errorf("%s is left", path)
			}
		}
	}
}

// processes fails when a process has something to do with the cluster.
func processes(c *kit.Cluster) error {
	files, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, file := range files {
		dir := filepath.Dir(file)
		cgroup, _ := os.ReadFile(file) // it may have ended since: then there is nothing to find
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		root, _ := os.Readlink(filepath.Join(dir, "root"))
		if strings.Contains(string(cgroup)+string(line)+root, c.Name) {
			return fmt.Errorf("process %s: %s, in %s", filepath.Base(dir), strings.ReplaceAll(string(line), "\x00", " "), cgroup)
		}
	}
	return nil
}

// busy makes the node do what could show outside: pods, a NodePort, masquerading.
const busy = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: "slipway.dev/testpod:1", imagePullPolicy: Never, args: [serve], ports: [{containerPort: 8080, hostPort: 8085}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`
