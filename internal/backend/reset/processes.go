// SPDX-License-Identifier: Apache-2.0

package reset

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
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/core/plan"
)

// killPods kills the processes in the pods' cgroups and the shims of containerd, and waits until they have
// exited.
func killPods(ctx context.Context, shim string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		left, err := podProcesses("/proc", shim)
		if err != nil || len(left) == 0 {
			return err
		}
		for _, pid := range left {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d pod processes still running: %w", len(left), ctx.Err())
		case <-tick.C:
		}
	}
}

// podProcesses returns the processes in pods' cgroups and those that run the shim, except zombies.
func podProcesses(proc, shim string) (pids []int, err error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		cgroups, err := os.ReadFile(filepath.Join(proc, e.Name(), "cgroup"))
		if err != nil {
			continue // it has exited
		}
		exe, _ := os.Readlink(filepath.Join(proc, e.Name(), "exe"))
		if isInPod(string(cgroups)) || shim != "" && exe == shim {
			if !isZombie(filepath.Join(proc, e.Name(), "stat")) {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// shimOf returns the path of the shim that the plan's containerd runs for each pod, or "".
func shimOf(p plan.Plan) string {
	for _, e := range p.Entries {
		if a, ok := e.Item.(plan.Artifact); ok && filepath.Base(a.Path) == "containerd-shim-runc-v2" {
			real, err := filepath.EvalSymlinks(a.Path)
			if err == nil {
				return real
			}
		}
	}
	return ""
}

// isInPod reports whether the content of /proc/PID/cgroup, such as
// "4:memory:/machine/kubepods/burstable/pod…", names a pod's cgroup.
func isInPod(cgroups string) bool {
	for line := range strings.Lines(cgroups) {
		_, path, _ := strings.Cut(strings.TrimSpace(line), ":/")
		if slices.ContainsFunc(strings.Split(path, "/"), func(dir string) bool { return dir == "kubepods" || dir == "kubepods.slice" }) {
			return true
		}
	}
	return false
}

func isZombie(stat string) bool {
	data, err := os.ReadFile(stat)
	if err != nil {
		return true
	}
	_, after, ok := strings.Cut(string(data), ") ")
	return ok && strings.HasPrefix(after, "Z")
}

// removeCgroups removes the cgroups of the units and of the kubelet's pods from every hierarchy. No
// process may be left in them.
func removeCgroups(units []string) error {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var errs []error
	for line := range strings.Lines(string(data)) {
		front, back, _ := strings.Cut(line, " - ")
		f := strings.Fields(front)
		if len(f) < 5 || !strings.HasPrefix(back, "cgroup") {
			continue
		}
		errs = append(errs, removeGroup(filepath.Join(f[4], "kubepods")))
		for _, unit := range units {
			errs = append(errs, removeGroup(filepath.Join(f[4], "slipway", unit)))
		}
	}
	return errors.Join(errs...)
}

// removeGroup removes a cgroup and its subgroups, deepest first.
func removeGroup(dir string) error {
	var groups []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			groups = append(groups, path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("list cgroups: %w", err)
	}
	var errs []error
	for _, group := range slices.Backward(groups) {
		errs = append(errs, removeFile(group))
	}
	return errors.Join(errs...)
}
