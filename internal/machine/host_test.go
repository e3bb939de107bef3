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

// hostState is everything of the host that a machine could have changed.
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
	for _, m := range mounts { // others may test or work at the same time, in their own folders
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
