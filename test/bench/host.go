// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Host is what the figures depend on.
type Host struct {
	CPUs     int     `json:"cpus"`
	Kernel   string  `json:"kernel"`
	CgroupV1 bool    `json:"cgroupV1"`
	Load     string  `json:"load"` // averages before the first run
	Busy     float64 `json:"busy"` // share of all CPUs in use before the first run
	When     string  `json:"when"`
}

// quietEnough is the share of all CPUs that others may take before a run.
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

// quiet waits until nobody else works on this host, and measures all the same when that takes too long: each run tells how
// much CPU others took.
func (b *bench) quiet(ctx context.Context, what string) error {
	for begun := time.Now(); ; {
		s, err := share(ctx)
		if err != nil || s <= quietEnough {
			return err
		}
		if time.Since(begun) > b.settle {
			b.note("%s begins while others take %.0f %% of the CPUs", what, 100*s)
			return nil
		}
	}
}

// share is how much of all CPUs is in use now.
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

// busy is the time that all CPUs have worked since the host started, in seconds; what a hypervisor took away counts too.
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
