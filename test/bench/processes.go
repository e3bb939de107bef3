// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// process is one process as it is now.
type process struct {
	pid     int
	program string
	pss     int64   // bytes
	cpu     float64 // seconds, in steps of 10 ms
}

// look reads one process; ok is false when it has ended.
func look(pid int) (p process, ok bool) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil || len(cmdline) == 0 {
		return p, false
	}
	p = process{pid: pid, program: program(strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00"))}
	rollup, err := os.ReadFile(filepath.Join(dir, "smaps_rollup"))
	if err != nil {
		return p, false
	}
	if p.pss, err = pss(string(rollup)); err != nil {
		return p, false
	}
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return p, false
	}
	p.cpu, err = cpuOf(string(stat))
	return p, err == nil
}

// program names a process by its command line. A shim is started by its file's real name, which is a digest.
func program(args []string) string {
	name := filepath.Base(args[0])
	switch {
	case len(name) == 64 && len(args) > 1 && args[1] == "-namespace":
		return "containerd-shim"
	case name == "slipway" && len(args) > 1:
		return "slipway " + args[1]
	}
	return name
}

func pss(rollup string) (bytes int64, err error) {
	for line := range strings.Lines(rollup) {
		if value, ok := strings.CutPrefix(line, "Pss:"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("read smaps_rollup: no Pss")
}

// cpuOf reads utime and stime, the 14th and 15th field of stat; the second, in brackets, may hold anything.
func cpuOf(stat string) (seconds float64, err error) {
	_, after, _ := strings.Cut(stat[strings.LastIndex(stat, ")")+1:], " ")
	f := strings.Fields(after)
	if len(f) < 13 {
		return 0, fmt.Errorf("read stat: %d fields", len(f))
	}
	for _, field := range f[11:13] {
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read stat: %w", err)
		}
		seconds += float64(n) / 100 // USER_HZ, the same on every architecture that Go runs on
	}
	return seconds, nil
}

// processes are those of the machine, and the host's end of the API proxy.
func (b *bench) processes() ([]process, error) {
	pids, err := b.place.cgroup.pids()
	if err != nil {
		return nil, fmt.Errorf("list processes of the machine: %w", err)
	}
	var out []process
	for _, pid := range pids {
		if p, ok := look(pid); ok {
			out = append(out, p)
		}
	}
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), "\x00proxy-serve\x00") || !strings.Contains(string(text), "/clusters/"+b.place.name+"/proxy") {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if p, ok := look(pid); ok {
			p.program = "slipway proxy-serve (host)"
			out = append(out, p)
		}
	}
	return out, nil
}
