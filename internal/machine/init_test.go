// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
)

// On cgroup v2 PID 1 must leave the root cgroup, or pods get no controllers. The test works with any v2
// hierarchy, including that of a hybrid host.
func TestLeaveCgroupRoot(t *testing.T) {
	l := newLocal(t) // skips without root
	mounts, err := readMounts("/proc/self/mountinfo")
	must(t, err)
	root := ""
	for _, m := range mounts {
		if m.fstype == "cgroup2" && m.root == "/" {
			root = m.point + l.cgroup
		}
	}
	if root == "" {
		t.Skip("this host has no cgroup v2 hierarchy")
	}
	must(t, os.Mkdir(root, 0o755))
	t.Cleanup(func() { must(t, removeCgroup(l.cgroup)) })
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `echo $$ > "$1/cgroup.procs" && exec "$0" leave-root "$1"`, testBinary(t), root)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "0::"+l.cgroup+"/init\n") {
		t.Errorf("%v: %s", err, out)
	}
	procs, err := os.ReadFile(filepath.Join(root, "cgroup.procs"))
	if err != nil || len(procs) != 0 {
		t.Errorf("processes in the root cgroup: got %q, %v; want none", procs, err)
	}
	if err := leaveCgroupRoot(t.TempDir()); err != nil {
		t.Errorf("cgroup v1: %v", err)
	}
}

// Init fails outside a machine: otherwise it would change the host's settings.
func TestInitIsNotForHosts(t *testing.T) {
	t.Parallel()
	before, err := os.ReadFile("/proc/sys/vm/overcommit_memory")
	must(t, err)
	if err := Init(t.Context(), InitConfig{}); err == nil || !strings.Contains(err.Error(), "must be PID 1 of a machine") {
		t.Errorf("Init outside a machine: got %v", err)
	}
	after, _ := os.ReadFile("/proc/sys/vm/overcommit_memory")
	if string(before) != string(after) {
		t.Error("the host's setting changed")
	}
}

func TestParseMounts(t *testing.T) {
	t.Parallel()
	got := parseMounts("22 27 0:21 / /proc rw,relatime shared:5 master:2 - proc proc rw\n" +
		"23 27 0:22 /a\\040b /mnt/with\\040space\\134 rw - ext4 /dev/x rw\nrubbish\n24 27 0:4 net:[4026532177] /pin rw - nsfs nsfs rw\n")
	want := []mount{{"/", "/proc", "proc"}, {"/a b", `/mnt/with space\`, "ext4"}, {"net:[4026532177]", "/pin", "nsfs"}}
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%+v, want %+v", got[i], want[i])
		}
	}
}

func testBinary(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	return exe
}

// hostState is all state of the host that a machine could change.
func hostState(t *testing.T, l *Local) map[string]string {
	t.Helper()
	state := map[string]string{}
	for _, path := range []string{"/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/panic", "/proc/sys/net/ipv4/ip_forward", "/etc/hosts", "/etc/hostname"} {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		state[path] = string(data)
	}
	mounts, err := readMounts("/proc/self/mountinfo")
	must(t, err)
	for _, m := range mounts { // other tests may run at the same time, in their own directories
		foreign := strings.HasPrefix(m.point, "/tmp/") || strings.HasPrefix(m.point, "/var/lib/slipway/")
		if !foreign || strings.HasPrefix(m.point, l.root) {
			state["mounts"] += fmt.Sprintln(m.point, m.fstype, m.root)
		}
	}
	links, err := netlink.LinkList()
	must(t, err)
	for _, l := range links {
		addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		must(t, err)
		for _, a := range addrs {
			state["links"] += l.Attrs().Name + " " + a.IPNet.String() + "\n"
		}
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	must(t, err)
	for _, r := range routes {
		state["routes"] += r.String() + "\n"
	}
	if out, err := exec.CommandContext(t.Context(), "nft", "list", "ruleset").Output(); err == nil {
		state["nft"] = string(out)
	}
	points, err := hierarchies()
	must(t, err)
	for _, p := range points {
		found, err := filepath.Glob(filepath.Join(p, l.cgroup))
		must(t, err)
		state["cgroups"] += strings.Join(found, "\n")
	}
	state["/etc"], state["/dev"] = treeHash(t, "/etc"), listing(t, "/dev")
	state["/var/lib"], state["/opt"] = listing(t, "/var/lib"), listing(t, "/opt")
	return state
}

func listing(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func treeHash(t *testing.T, dir string) string {
	t.Helper()
	sum := sha256.New()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(sum, "%s %v %d %d\n", path, info.Mode(), info.Size(), info.ModTime().UnixNano())
		return nil
	})
	must(t, err)
	return fmt.Sprintf("%x", sum.Sum(nil))
}

func hostDiff(before, after map[string]string) string { return cmp.Diff(before, after) }
