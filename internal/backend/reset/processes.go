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

// killPods ends what the kubelet and containerd have left running: processes of the pods' cgroups and the shims above them. It
// waits until they are gone.
func killPods(ctx context.Context, shim string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		left, err := pods("/proc", shim)
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
			return fmt.Errorf("%d processes of pods do not end: %w", len(left), ctx.Err())
		case <-tick.C:
		}
	}
}

func pods(proc, shim string) (pids []int, err error) {
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
			continue // it has ended
		}
		exe, _ := os.Readlink(filepath.Join(proc, e.Name(), "exe"))
		if inPod(string(cgroups)) || shim != "" && exe == shim {
			if !zombie(filepath.Join(proc, e.Name(), "stat")) {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// shimOf is the file that the plan's containerd runs beside each pod.
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

// inPod reads /proc/PID/cgroup: "4:memory:/machine/kubepods/burstable/pod…".
func inPod(cgroups string) bool {
	for line := range strings.Lines(cgroups) {
		_, path, _ := strings.Cut(strings.TrimSpace(line), ":/")
		if slices.ContainsFunc(strings.Split(path, "/"), func(dir string) bool { return dir == "kubepods" || dir == "kubepods.slice" }) {
			return true
		}
	}
	return false
}

func zombie(stat string) bool {
	data, err := os.ReadFile(stat)
	if err != nil {
		return true
	}
	_, after, ok := strings.Cut(string(data), ") ")
	return ok && strings.HasPrefix(after, "Z")
}

// removeCgroups removes the groups of the units and of the kubelet's pods, of which nothing runs any more, in each hierarchy.
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

// removeGroup removes a group and those below it, deepest first. Their files go with them.
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
		errs = append(errs, gone(group))
	}
	return errors.Join(errs...)
}
