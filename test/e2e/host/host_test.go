// SPDX-License-Identifier: Apache-2.0

// Package host_test compares the state of the host before, during and after a cluster: it must not change.
package host_test

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/testkit"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

func TestHostUntouched(t *testing.T) {
	c := kit.New(t, "host")
	before := snapshot(t, c)

	c.MustUp()
	c.ImportTestImage()
	c.Apply(busy)
	c.Wait("deployment/web", "condition=Available")
	during := snapshot(t, c)
	for aspect := range before {
		switch aspect {
		case "mounts", "cgroups", "run": // entries of the machine are added; others must not change
			for _, line := range before[aspect] {
				if !slices.Contains(during[aspect], line) {
					t.Errorf("%s of the host while the cluster runs: missing %s", aspect, line)
				}
			}
			for _, line := range during[aspect] {
				if !slices.Contains(before[aspect], line) && !strings.Contains(line, c.Name) && !shared(line) {
					t.Errorf("%s of the host while the cluster runs: got %s, which does not name the cluster", aspect, line)
				}
			}
		default:
			if diff := cmp.Diff(before[aspect], during[aspect]); diff != "" {
				t.Errorf("%s of the host while the cluster runs (- before, + during):\n%s", aspect, diff)
			}
		}
	}
	if cmp.Equal(before["mounts"], during["mounts"]) {
		t.Error("mounts while a machine runs: got none of the machine: the test looks in the wrong place")
	}

	c.Down()
	after := snapshot(t, c)
	for aspect := range before {
		if diff := cmp.Diff(before[aspect], after[aspect]); diff != "" {
			t.Errorf("%s of the host after down (- before, + after):\n%s", aspect, diff)
		}
	}
	leftovers(t, c)
}

// shared reports whether a line names a directory that all clusters of this host share. The last down removes it.
func shared(line string) bool {
	return strings.HasSuffix(line, "/slipway") || strings.Contains(line, "/slipway-") || strings.Contains(line, "/slipway/")
}

// leftovers fails the test if anything on the host still has the cluster's name.
func leftovers(t *testing.T, c *kit.Cluster) {
	for _, dir := range []string{"machines", "clusters", "locks"} {
		if _, err := os.Lstat(filepath.Join(kit.Root, dir, c.Name)); !os.IsNotExist(err) {
			t.Errorf("after down, the cluster's directory in %s is left: %v", dir, err)
		}
	}
	testkit.Until(t, 30*time.Second, "no process of the cluster is left", func() error { return processes(c) }) // the host's init reaps orphans
	for _, file := range []string{"/proc/net/unix", "/proc/self/mountinfo"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, c.Name) {
				t.Errorf("after down, %s still contains %s", file, line)
			}
		}
	}
	for _, pattern := range []string{"/run/*", "/run/*/*", "/tmp/*", "/var/tmp/*", "/var/run/*", "/dev/shm/*", "/sys/fs/bpf/*"} {
		found, _ := filepath.Glob(pattern)
		for _, path := range found {
			if strings.Contains(path, c.Name) {
				t.Errorf("after down, %s is left", path)
			}
		}
	}
}

// processes returns an error if a process belongs to the cluster.
func processes(c *kit.Cluster) error {
	files, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, file := range files {
		dir := filepath.Dir(file)
		cgroup, _ := os.ReadFile(file) // empty if the process has exited
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		root, _ := os.Readlink(filepath.Join(dir, "root"))
		if strings.Contains(string(cgroup)+string(line)+root, c.Name) {
			return fmt.Errorf("process %s: %s, in %s", filepath.Base(dir), strings.ReplaceAll(string(line), "\x00", " "), cgroup)
		}
	}
	return nil
}

// busy is a workload that could have effects on the host: a pod with a host port, a NodePort, masquerading.
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

// snapshot describes aspects of the host in sorted lines, without those of other clusters of this host, which may change meanwhile.
func snapshot(t *testing.T, c *kit.Cluster) map[string][]string {
	t.Helper()
	foreign := otherClusters(t, c)
	aspects := map[string][]string{
		"nftables":  output(t, "nft", "list", "ruleset"),
		"addresses": output(t, "ip", "-oneline", "address"),
		"links":     output(t, "ip", "-oneline", "link"),
		"routes":    output(t, "ip", "route", "show", "table", "all"),
		"routes6":   output(t, "ip", "-6", "route", "show", "table", "all"),
		"rules":     output(t, "ip", "rule"),
		"netns":     output(t, "ip", "netns"),
		"etc":       tree(t, "/etc", true),
		"mounts":    mounts(t),
		"cgroups":   directories(t, "/sys/fs/cgroup"),
		"sysctls":   sysctls(t),
		"run":       names(t, "/run/*", "/run/netns/*", "/run/containerd/*", "/run/slipway*/*"),
		"data": append(names(t, "/var/lib/*", "/opt/*", "/opt/cni/bin/*", "/var/log/pods/*", "/var/log/containers/*"),
			slices.Concat(tree(t, "/var/lib/kubelet", false), tree(t, "/var/lib/etcd", false), tree(t, "/var/lib/containerd", false))...),
	}
	for aspect, lines := range aspects {
		lines = slices.DeleteFunc(lines, func(line string) bool {
			return slices.ContainsFunc(foreign, func(name string) bool { return strings.Contains(line, "/"+name) })
		})
		slices.Sort(lines)
		aspects[aspect] = slices.Compact(lines)
	}
	for _, aspect := range []string{"addresses", "links", "etc", "mounts", "cgroups", "sysctls", "run", "data"} {
		if len(aspects[aspect]) == 0 {
			t.Fatalf("%s of the host: got none: the test looks in the wrong place", aspect)
		}
	}
	return aspects
}

func otherClusters(t *testing.T, c *kit.Cluster) []string {
	var names []string
	for _, dir := range []string{"machines", "clusters"} {
		found, err := filepath.Glob(filepath.Join(kit.Root, dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			if name := filepath.Base(path); name != c.Name {
				names = append(names, name)
			}
		}
	}
	return names
}

// transient matches what changes by itself in the output of ip: lifetimes and queue lengths.
var transient = regexp.MustCompile(`(valid_lft|preferred_lft|expires) \S+|\bqlen \d+`)

func output(t *testing.T, name string, args ...string) []string {
	t.Helper()
	r := kit.Run(t, name, args...)
	if r.Code != 0 {
		t.Fatal(r)
	}
	return strings.Split(strings.TrimSpace(transient.ReplaceAllString(r.Out, "")), "\n")
}

// tree lists everything below dir with its mode, digest or link target. A missing directory is one line.
func tree(t *testing.T, dir string, digests bool) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			lines = append(lines, path+" is missing")
			return nil
		}
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		line := fmt.Sprintf("%s %s", path, info.Mode())
		if link, err := os.Readlink(path); err == nil {
			line += " -> " + link
		}
		if digests && info.Mode().IsRegular() {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %x", sha256.Sum256(text))
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func names(t *testing.T, patterns ...string) []string {
	t.Helper()
	var all []string
	for _, p := range patterns {
		found, err := filepath.Glob(p)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}

// mounts lists mount point, options and source of each mount, without the kernel's IDs.
func mounts(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 5 {
			_, source, _ := strings.Cut(line, " - ")
			lines = append(lines, f[4]+" "+f[5]+" "+strings.TrimSpace(source))
		}
	}
	return lines
}

func directories(t *testing.T, dir string) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if os.IsNotExist(err) { // removed meanwhile
			return nil
		}
		if err == nil && e.IsDir() {
			lines = append(lines, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// counters matches files in /proc/sys that are counters or actions of the kernel, not settings.
var counters = regexp.MustCompile(`/(random/|ns_last_pid$|file-nr$|inode-nr$|inode-state$|dentry-state$|aio-nr$|nf_conntrack_count$|pty/nr$|sched_domain/|numa_balancing|binfmt_misc/|` +
	`quota/|epoll/|usermodehelper/|nf_conntrack_expect|cad_pid$|perf_event_max_sample_rate$|stat_refresh$|(drop_caches|compact_memory|route/flush|keys/users)$|hostname$)`)

// sysctls reads all kernel settings. Those that do not belong to a namespace are the host's, even if a machine sets them.
func sysctls(t *testing.T) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir("/proc/sys", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || counters.MatchString(path) {
			return nil //nolint:nilerr // an entry that cannot be listed cannot be compared
		}
		if text, err := os.ReadFile(path); err == nil { // some are write-only
			lines = append(lines, path+" = "+strings.TrimSpace(string(text)))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, must := range []string{"/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/panic", "/proc/sys/kernel/panic_on_oops", "/proc/sys/net/ipv4/ip_forward"} {
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, must+" =") }) {
			t.Fatalf("sysctls: %s is missing", must)
		}
	}
	return lines
}
