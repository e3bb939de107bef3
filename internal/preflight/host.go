// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/slipway-project/slipway/internal/node/prepare"
)

// host reads the files of a host below a root directory, which tests replace.
type host struct{ root string }

// prepared gives access to the checks of package prepare, so that a preflight and a plan ask the same way.
func (h host) prepared() prepare.Host { return prepare.Host{Root: h.root} }

// read returns a file's content, "" if it cannot be read: the check decides what that means.
func (h host) read(path string) string {
	data, _ := os.ReadFile(filepath.Join(h.root, path))
	return string(data)
}

func (h host) exists(path string) bool {
	_, err := os.Stat(filepath.Join(h.root, path))
	return err == nil
}

// matches reports whether a file matches the glob.
func (h host) matches(glob string) bool {
	found, _ := filepath.Glob(filepath.Join(h.root, glob))
	return len(found) > 0
}

// hasProgram looks for a program in the directories that machines search.
func (h host) hasProgram(name string) bool {
	for _, dir := range []string{"usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin", "usr/local/go/bin"} {
		if info, err := os.Stat(filepath.Join(h.root, dir, name)); err == nil && info.Mode()&0o111 != 0 {
			return true
		}
	}
	return false
}

func (h host) number(path string) (uint64, bool) {
	n, err := strconv.ParseUint(strings.TrimSpace(h.read(path)), 10, 64)
	return n, err == nil
}

// meminfo returns a value of /proc/meminfo in bytes.
func (h host) meminfo(key string) (uint64, bool) {
	for line := range strings.Lines(h.read("proc/meminfo")) {
		if v, ok := strings.CutPrefix(line, key+":"); ok {
			n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			return n * kib, err == nil
		}
	}
	return 0, false
}

// cgroupVersion returns 1 as soon as one controller is on a v1 hierarchy (hybrid hosts included), 2, or 0
// if none is mounted.
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
			return 1
		case g[0] == "cgroup2" && f[4] == "/sys/fs/cgroup":
			version = 2
		}
	}
	return version
}

// hasCapability reports whether this process has a capability.
func (h host) hasCapability(capability int) bool {
	for line := range strings.Lines(h.read("proc/self/status")) {
		if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
			bits, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			return err == nil && bits&(1<<capability) != 0
		}
	}
	return false
}

// controllers lists the cgroup controllers that the kernel has enabled.
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
