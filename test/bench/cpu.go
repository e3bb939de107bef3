// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// cgroup is a directory in the hierarchy that accounts CPU time.
type cgroup struct {
	dir string
	v1  bool
}

// findCgroup returns where a cgroup is, or will be.
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
		return cgroup{}, errors.New("find cgroups: no hierarchy that accounts CPU time is mounted")
	}
	return cgroup{filepath.Join(unified, path), false}, nil
}

// cpu returns the CPU time of all processes in and below the cgroup, including those that have exited.
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

// units returns the named cgroups of a machine: its supervised processes, and all pods together.
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

// pids lists the processes in and below the cgroup.
func (c cgroup) pids() ([]int, error) {
	var pids []int
	err := filepath.WalkDir(c.dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a pod has exited
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

// unnamed is the row of processes in the machine that belong to no unit and no pod.
const unnamed = "agent, init, exec"

// meter samples the machine's CPU time, because the moment of interest is known only later.
type meter struct {
	cgroup cgroup

	mu      sync.Mutex // guards the fields below
	samples []sample
}

type sample struct {
	at    time.Time
	total float64
	by    map[string]float64
}

func newMeter(c cgroup) *meter { return &meter{cgroup: c} }

// run samples until ctx ends.
func (m *meter) run(ctx context.Context) {
	_ = poll(ctx, step, func() bool { // until ctx ends
		if s, ok := m.cgroup.sample(m.last()); ok {
			m.mu.Lock()
			m.samples = append(m.samples, s)
			m.mu.Unlock()
		}
		return false
	})
}

func (m *meter) last() map[string]float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.samples) == 0 {
		return nil
	}
	return m.samples[len(m.samples)-1].by
}

// sample keeps the last value of units that do not exist any more.
func (c cgroup) sample(before map[string]float64) (sample, bool) {
	s := sample{at: time.Now(), by: map[string]float64{}}
	maps.Copy(s.by, before)
	delete(s.by, unnamed)
	var err error
	if s.total, err = c.cpu(); err != nil {
		return s, false // no machine yet
	}
	for name, unit := range c.units() {
		if seconds, err := unit.cpu(); err == nil {
			s.by[name] = seconds
		}
	}
	left := s.total
	for _, seconds := range s.by {
		left -= seconds
	}
	s.by[unnamed] = max(0, left)
	return s, true
}

// until returns the first sample at or after a time, or the last one.
func (m *meter) until(at time.Time) (total float64, by map[string]float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, s := range m.samples {
		if !s.at.Before(at) || i == len(m.samples)-1 {
			return s.total, maps.Clone(s.by)
		}
	}
	return 0, map[string]float64{}
}

// Host describes the host of the measurement.
type Host struct {
	CPUs     int     `json:"cpus"`
	Kernel   string  `json:"kernel"`
	CgroupV1 bool    `json:"cgroupV1"`
	Load     string  `json:"load"` // averages before the first run
	Busy     float64 `json:"busy"` // share of all CPUs in use before the first run
	When     string  `json:"when"`
}

// quietEnough is the share of all CPUs that other processes may use before a run.
const quietEnough = 0.10

func (b *bench) host(ctx context.Context) (Host, error) {
	h := Host{CPUs: runtime.NumCPU(), CgroupV1: b.place.cgroup.v1, When: time.Now().UTC().Format(time.DateTime)}
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		h.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return h, fmt.Errorf("read load: %w", err)
	}
	h.Load = strings.Join(strings.Fields(string(load))[:3], " ")
	h.Busy, err = share(ctx)
	b.say("load %s, %.0f %% of %d CPUs in use", h.Load, 100*h.Busy, h.CPUs)
	return h, err
}

// quiet waits until the host is idle, for up to b.settle. If it is not, the measurement starts anyway: each run records how much CPU other
// processes used.
func (b *bench) quiet(ctx context.Context, what string) error {
	for begun := time.Now(); ; {
		s, err := share(ctx)
		if err != nil || s <= quietEnough {
			return err
		}
		if time.Since(begun) > b.settle {
			b.note("%s starts while other processes use %.0f %% of the CPUs", what, 100*s)
			return nil
		}
	}
}

// share returns the share of all CPUs that is in use now.
func share(ctx context.Context) (float64, error) {
	before, err := busy()
	if err != nil {
		return 0, err
	}
	begun := time.Now()
	if err := wait(ctx, time.Second); err != nil {
		return 0, err
	}
	after, err := busy()
	return (after - before) / time.Since(begun).Seconds() / float64(runtime.NumCPU()), err
}

// busy returns the time that all CPUs have worked since the host's boot, in seconds, including time stolen by a hypervisor.
func busy() (seconds float64, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read CPU time: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	f := strings.Fields(line) // cpu user nice system idle iowait irq softirq steal …
	if len(f) < 9 {
		return 0, fmt.Errorf("read CPU time: %q", line)
	}
	for _, i := range []int{1, 2, 3, 6, 7, 8} {
		n, err := strconv.ParseUint(f[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read CPU time: %w", err)
		}
		seconds += float64(n) / 100
	}
	return seconds, nil
}
