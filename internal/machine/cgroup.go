// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/machine/process"
)

// cgroupParent is /slipway for the default root. Every other root has its own, so that clusters of the same
// name under two roots do not share cgroups.
func cgroupParent(root string) string {
	if root == "/var/lib/slipway" {
		return "/slipway"
	}
	sum := sha256.Sum256([]byte(root))
	return fmt.Sprintf("/slipway-%x", sum[:4])
}

// hierarchies lists the mount points of all cgroup hierarchies: one on a cgroup v2 host, one per controller
// on v1.
func hierarchies() ([]string, error) {
	mounts, err := readMounts("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var points []string
	for _, m := range mounts {
		if (m.fstype == "cgroup" || m.fstype == "cgroup2") && m.root == "/" && !slices.Contains(points, m.point) {
			points = append(points, m.point)
		}
	}
	return points, nil
}

// cgroupsBelow lists the cgroups at and below path in all hierarchies, children first.
func cgroupsBelow(path string) ([]string, error) {
	points, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, point := range points {
		err := filepath.WalkDir(filepath.Join(point, path), func(p string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // removed in the meantime
			}
			if err == nil && d.IsDir() {
				dirs = append(dirs, p)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("walk cgroups: %w", err)
		}
	}
	slices.Reverse(dirs) // WalkDir visits parents first
	return dirs, nil
}

// killCgroup kills every process in the cgroups at and below path and returns those that it killed.
func killCgroup(path string) ([]process.ID, error) {
	dirs, err := cgroupsBelow(path)
	if err != nil {
		return nil, err
	}
	var killed []process.ID
	for _, dir := range dirs {
		data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			continue // removed, or a threaded cgroup, whose processes are listed in its parent
		}
		for _, field := range strings.Fields(string(data)) {
			pid, err := strconv.Atoi(field)
			if err != nil || pid == os.Getpid() {
				continue
			}
			p, err := process.Identify(pid)
			if err != nil {
				continue // it has exited
			}
			if err := p.Signal(unix.SIGKILL); err != nil {
				return killed, err
			}
			killed = append(killed, p)
		}
	}
	return killed, nil
}

// removeCgroup removes the cgroups at and below path, deepest first.
func removeCgroup(path string) error {
	dirs, err := cgroupsBelow(path)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := rmdirCgroup(dir); err != nil {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
	}
	return nil
}

// removeEmptyParents removes the cgroups above a destroyed cluster's. It excludes concurrent boots: runc
// would fail if the parent of a cgroup that it creates disappeared.
func (l *Local) removeEmptyParents(cluster string) error {
	unlock, err := durable.LockDirBriefly(l.clusters())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	points, err := hierarchies()
	if err != nil {
		return err
	}
	for parent := filepath.Dir(l.cgroupOf(cluster)); parent != "/"; parent = filepath.Dir(parent) {
		for _, point := range points {
			_ = unix.Rmdir(filepath.Join(point, parent)) // fails while another cluster uses it
		}
	}
	return nil
}

// rmdirCgroup retries for two seconds: a process leaves its cgroup shortly after its exit is reported.
func rmdirCgroup(dir string) error {
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Since(begin) > 2*time.Second {
			return err
		}
	}
}
