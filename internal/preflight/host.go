// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// host reads the files of a host below a folder, so that tests can make one up.
type host struct{ root string }

// read returns a file's content, and nothing for a file that is not there: what follows from that is the check's to say.
func (h host) read(path string) string {
	data, _ := os.ReadFile(filepath.Join(h.root, path))
	return string(data)
}

func (h host) exists(path string) bool {
	_, err := os.Stat(filepath.Join(h.root, path))
	return err == nil
}

// find looks for a program where machines will look for it.
func (h host) find(program string) bool {
	for _, dir := range []string{"usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin", "usr/local/go/bin"} {
		if info, err := os.Stat(filepath.Join(h.root, dir, program)); err == nil && info.Mode()&0o111 != 0 {
			return true
		}
	}
	return false
}

func (h host) number(path string) (uint64, bool) {
	n, err := strconv.ParseUint(strings.TrimSpace(h.read(path)), 10, 64)
	return n, err == nil
}

// Facts are what other parts of Slipway want to know of a host.
type Facts struct {
	CgroupV1    bool // the controllers are on v1 hierarchies, also on a hybrid host
	OOMScoreAdj bool // processes may lower their oom_score_adj (CAP_SYS_RESOURCE)
}

func (h host) facts() Facts {
	return Facts{CgroupV1: h.cgroupVersion() == 1, OOMScoreAdj: h.has(unix.CAP_SYS_RESOURCE)}
}

// cgroupVersion is 0 when no hierarchy is mounted.
func (h host) cgroupVersion() int {
	version := 0
	for line := range strings.Lines(h.read("proc/self/mountinfo")) {
		before, after, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(g) < 3 {
			continue
		}
		switch {
		case g[0] == "cgroup" && !strings.Contains(g[2], "name="):
			return 1 // one v1 controller makes the host a v1 host, whatever else is mounted
		case g[0] == "cgroup2" && f[4] == "/sys/fs/cgroup":
			version = 2
		}
	}
	return version
}

// has reports whether this process has a capability.
func (h host) has(capability int) bool {
	for line := range strings.Lines(h.read("proc/self/status")) {
		if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
			bits, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			return err == nil && bits&(1<<capability) != 0
		}
	}
	return false
}

// controllers lists those that the kernel has switched on.
func (h host) controllers() []string {
	if h.cgroupVersion() == 2 {
		return strings.Fields(h.read("sys/fs/cgroup/cgroup.controllers"))
	}
	var on []string
	for line := range strings.Lines(h.read("proc/cgroups")) { // name, hierarchy, cgroups, enabled
		if f := strings.Fields(line); len(f) == 4 && f[1] != "0" && f[3] == "1" {
			on = append(on, f[0])
		}
	}
	slices.Sort(on)
	return on
}
