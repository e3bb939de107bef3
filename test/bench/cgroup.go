// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// cgroup is a folder in the hierarchy that counts CPU time.
type cgroup struct {
	dir string
	v1  bool
}

// findCgroup says where a cgroup is or will be.
func findCgroup(path string) (cgroup, error) {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return cgroup{}, fmt.Errorf("find cgroups: %w", err)
	}
	unified := ""
	for line := range strings.Lines(string(info)) { // "30 24 0:27 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct"
		before, after, _ := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if len(f) < 5 || len(g) < 3 || f[3] != "/" {
			continue
		}
		switch {
		case g[0] == "cgroup" && strings.Contains(","+g[2]+",", ",cpuacct,"):
			return cgroup{filepath.Join(f[4], path), true}, nil
		case g[0] == "cgroup2":
			unified = f[4]
		}
	}
	if unified == "" {
		return cgroup{}, errors.New("find cgroups: no hierarchy that counts CPU time is mounted")
	}
	return cgroup{filepath.Join(unified, path), false}, nil
}

// cpu is the time that all processes in and below the cgroup have taken, those that have ended included.
func (c cgroup) cpu() (seconds float64, err error) {
	if c.v1 {
		text, err := os.ReadFile(filepath.Join(c.dir, "cpuacct.usage"))
		if err != nil {
			return 0, err
		}
		n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
		return float64(n) / 1e9, err
	}
	text, err := os.ReadFile(filepath.Join(c.dir, "cpu.stat"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "usage_usec "); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
			return float64(n) / 1e6, err
		}
	}
	return 0, fmt.Errorf("read %s/cpu.stat: no usage_usec", c.dir)
}

// units are the cgroups of a machine that have names: its supervised processes and all pods together.
func (c cgroup) units() map[string]cgroup {
	out := map[string]cgroup{"pods": {filepath.Join(c.dir, "kubepods"), c.v1}}
	entries, _ := os.ReadDir(filepath.Join(c.dir, "slipway")) // none until the first unit starts
	for _, e := range entries {
		if e.IsDir() {
			out[e.Name()] = cgroup{filepath.Join(c.dir, "slipway", e.Name()), c.v1}
		}
	}
	return out
}

// pids are the processes in and below the cgroup.
func (c cgroup) pids() ([]int, error) {
	var pids []int
	err := filepath.WalkDir(c.dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a pod has ended
		}
		if err != nil || e.Name() != "cgroup.procs" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, field := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
		return err
	})
	return pids, err
}
