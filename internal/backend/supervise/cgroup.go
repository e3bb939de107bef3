// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cgroups are the hierarchies in which each unit has a group. Processes of a unit are found by the first.
type cgroups struct {
	parents []string // <mount>/<parent>
	unified bool     // the first is a version 2 hierarchy: processes can be started in a group
}

// findCgroups returns every writable cgroup hierarchy, of either version, mounted at or below root.
func findCgroups(root, parent string) (cgroups, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return cgroups{}, err
	}
	var c cgroups
	rank := map[string]int{}
	for line := range strings.Lines(string(data)) {
		front, back, _ := strings.Cut(line, " - ")
		f, b := strings.Fields(front), strings.Fields(back)
		if len(f) < 5 || len(b) < 3 || !strings.HasPrefix(b[0], "cgroup") || (f[4] != root && !strings.HasPrefix(f[4], root+"/")) {
			continue
		}
		options := strings.Split(b[2], ",")
		if slices.Contains(options, "cpuset") { // accepts no processes until it is configured, and is not needed here
			continue
		}
		dir := filepath.Join(f[4], parent)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			continue
		}
		if b[0] == "cgroup2" {
			enable(f[4])
			enable(dir)
			c.unified = true
		}
		rank[dir] = usefulness(b[0], options)
		c.parents = append(c.parents, dir)
	}
	if len(c.parents) == 0 {
		return cgroups{}, fmt.Errorf("no writable cgroup hierarchy under %s (mount one, or run as root)", root)
	}
	slices.SortStableFunc(c.parents, func(a, b string) int { return rank[a] - rank[b] })
	c.parents = slices.Compact(c.parents)
	return c, nil
}

// usefulness ranks hierarchies: the lower, the less likely other programs move processes in them.
func usefulness(fstype string, options []string) int {
	if fstype == "cgroup2" {
		return 0
	}
	for i, name := range []string{"name=systemd", "freezer", "pids", "memory"} {
		if slices.Contains(options, name) {
			return i + 1
		}
	}
	return 9
}

// enable turns on the available controllers. In a hybrid setup there are none.
func enable(dir string) {
	for _, controller := range []string{"+cpu", "+memory", "+pids"} {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(controller), 0)
	}
}

// make creates the unit's group in each hierarchy and returns the directories. Only the first hierarchy is
// required.
func (c cgroups) make(name string) (dirs []string, err error) {
	for i, parent := range c.parents {
		dir := filepath.Join(parent, name)
		err := os.Mkdir(dir, 0o755)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			if i == 0 {
				return nil, err
			}
			continue
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

// remove deletes the unit's groups. Groups with remaining child processes stay.
func (c cgroups) remove(name string) {
	for _, parent := range c.parents {
		_ = os.Remove(filepath.Join(parent, name))
	}
}

// fork starts a process. In a version 2 hierarchy it runs in its group from the first moment.
func (c cgroups) fork(name, argv0 string, args []string, attr *syscall.ProcAttr) (pid int, err error) {
	if c.unified {
		dir, err := os.Open(filepath.Join(c.parents[0], name))
		if err != nil {
			return 0, err
		}
		defer dir.Close() // only identifies the group
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(dir.Fd())
	}
	pid, err = syscall.ForkExec(argv0, args, attr)
	if err != nil && attr.Sys.UseCgroupFD { // clone3 may be forbidden: Exec then joins the group
		attr.Sys.UseCgroupFD = false
		pid, err = syscall.ForkExec(argv0, args, attr)
	}
	return pid, err
}

// processes returns the PIDs in the unit's group and its subgroups.
func (c cgroups) processes(name string) []int {
	var pids []int
	_ = filepath.WalkDir(filepath.Join(c.parents[0], name), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil //nolint:nilerr // a deleted group has no processes
		}
		data, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		for field := range strings.FieldsSeq(string(data)) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 1 {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids
}

// kill sends SIGKILL to all processes of the unit's group until none is left or ctx ends.
func (c cgroups) kill(ctx context.Context, name string) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		pids := slices.DeleteFunc(c.processes(name), isZombie)
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids { // in every round: a process may have forked in between
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("kill process %d of %s: %w", pid, name, err)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// isZombie reports whether a process has ended, reaped or not.
func isZombie(pid int) bool {
	fields, err := statFields(pid)
	return err != nil || fields[0] == "Z" || fields[0] == "X"
}
