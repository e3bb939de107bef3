// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// On cgroup v2 PID 1 must stand aside, or no pod gets a controller. Any v2 hierarchy will do for a test, a hybrid host's too.
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
		t.Errorf("the root is not empty: %q, %v", procs, err)
	}
	if err := leaveCgroupRoot(t.TempDir()); err != nil {
		t.Errorf("cgroup v1: %v", err)
	}
}

// Every failure to reach the kubelet's settings must be seen: unprotected, it would change the host.
func TestInitIsNotForHosts(t *testing.T) {
	t.Parallel()
	before, err := os.ReadFile("/proc/sys/vm/overcommit_memory")
	must(t, err)
	if err := Init(t.Context(), InitConfig{}); err == nil || !strings.Contains(err.Error(), "first process of a machine") {
		t.Errorf("Init outside a machine: %v", err)
	}
	after, _ := os.ReadFile("/proc/sys/vm/overcommit_memory")
	if string(before) != string(after) {
		t.Error("the host's setting has changed")
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
