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

// cgroups are the hierarchies in which each unit has a group. The first is the one that a unit's processes are found by.
type cgroups struct {
	parents []string // <mount>/<parent>
	unified bool     // the first is of version 2: a process can be born in it
}

// findCgroups looks for every mounted hierarchy that can be written to, of either version.
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
		if slices.Contains(options, "cpuset") { // refuses processes until it is configured, and is of no use here
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
		return cgroups{}, fmt.Errorf("no cgroup hierarchy under %s can be written to: mount one, or run as root", root)
	}
	slices.SortStableFunc(c.parents, func(a, b string) int { return rank[a] - rank[b] })
	c.parents = slices.Compact(c.parents)
	return c, nil
}

// usefulness orders hierarchies by how little others move processes about in them.
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

// enable turns on the controllers that there are. In a hybrid set-up there are none.
func enable(dir string) {
	for _, controller := range []string{"+cpu", "+memory", "+pids"} {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(controller), 0)
	}
}

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

// remove takes the groups away, unless processes are left in them that the unit was told to leave.
func (c cgroups) remove(name string) {
	for _, parent := range c.parents {
		_ = os.Remove(filepath.Join(parent, name))
	}
}

// fork starts a process, in version 2 inside its group from its first moment.
func (c cgroups) fork(name, argv0 string, args []string, attr *syscall.ProcAttr) (pid int, err error) {
	if c.unified {
		dir, err := os.Open(filepath.Join(c.parents[0], name))
		if err != nil {
			return 0, err
		}
		defer dir.Close() // only names the group
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(dir.Fd())
	}
	pid, err = syscall.ForkExec(argv0, args, attr)
	if err != nil && attr.Sys.UseCgroupFD { // clone3 may be forbidden: Exec joins the group by itself
		attr.Sys.UseCgroupFD = false
		pid, err = syscall.ForkExec(argv0, args, attr)
	}
	return pid, err
}

// processes lists everything in the unit's group and below it.
func (c cgroups) processes(name string) []int {
	var pids []int
	_ = filepath.WalkDir(filepath.Join(c.parents[0], name), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil //nolint:nilerr // a group that is gone has no processes
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

// kill ends everything in the unit's group, and returns when nothing is left or ctx ends.
func (c cgroups) kill(ctx context.Context, name string) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		pids := slices.DeleteFunc(c.processes(name), isZombie)
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids { // again each time: a process may have forked in between
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

func isZombie(pid int) bool {
	fields, err := statFields(pid)
	return err != nil || fields[0] == "Z" || fields[0] == "X"
}
