// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const agentProgram = "slipway agent"

// Idle has the memory and CPU of a cluster that has nothing to do.
type Idle struct {
	PSS    map[string]int64   `json:"pss"`    // bytes by program, as if nothing else on the host shared pages
	Kernel int64              `json:"kernel"` // PSS according to the kernel: less if another cluster maps the same files
	CPU    float64            `json:"cpu"`    // seconds of all processes of the machine in a minute
	CPUBy  map[string]float64 `json:"cpuBy"`  // by program, in a minute; steps of 10 ms
	Agent  int64              `json:"agent"`  // PSS
	Share  float64            `json:"share"`  // of a core that the agent uses
	Rested float64            `json:"rested"` // seconds between the last pod and PSS
}

// measureIdle waits for the idle time, and then measures for the idle time.
func (b *bench) measureIdle(ctx context.Context) (*Idle, error) {
	before, own, err := b.memory(ctx)
	if err != nil {
		return nil, err
	}
	b.say("measuring the idle cluster for %s", b.idle)
	used, err := b.place.cgroup.cpu()
	if err != nil {
		return nil, fmt.Errorf("read CPU time of the machine: %w", err)
	}
	begun := time.Now()
	if err := wait(ctx, b.idle); err != nil {
		return nil, err
	}
	perMinute := time.Minute.Seconds() / time.Since(begun).Seconds()
	after, err := b.processes()
	if err != nil {
		return nil, err
	}
	now, err := b.place.cgroup.cpu()
	if err != nil {
		return nil, fmt.Errorf("read CPU time of the machine: %w", err)
	}
	i := &Idle{PSS: byProgram(before, own), CPUBy: map[string]float64{}, CPU: (now - used) * perMinute, Rested: b.idle.Seconds()}
	began := map[int]float64{}
	for _, p := range before {
		i.Kernel += p.pss
		began[p.pid] = p.cpu
	}
	for _, p := range after {
		i.CPUBy[p.program] += (p.cpu - began[p.pid]) * perMinute
	}
	i.Agent, i.Share = i.PSS[agentProgram], i.CPUBy[agentProgram]/time.Minute.Seconds()
	return i, nil
}

// memory deletes the test pods, waits for the idle time, and returns the cluster's processes and their memory as from [alone].
func (b *bench) memory(ctx context.Context) (ps []process, own map[int]int64, err error) {
	a, err := connect(b.place.apiSocket(), b.place.credential())
	if err != nil {
		return nil, nil, err
	}
	if err := a.clear(ctx); err != nil {
		return nil, nil, err
	}
	a.http.CloseIdleConnections()
	b.say("waiting for %s", b.idle)
	if err := wait(ctx, b.idle); err != nil {
		return nil, nil, err
	}
	if ps, err = b.processes(); err != nil {
		return nil, nil, err
	}
	own, err = alone(ps)
	return ps, own, err
}

func byProgram(ps []process, own map[int]int64) map[string]int64 {
	by := map[string]int64{}
	for _, p := range ps {
		by[p.program] += own[p.pid]
	}
	return by
}

// sum returns the sum of all programs.
func sum(by map[string]int64) (bytes int64) {
	for _, b := range by {
		bytes += b
	}
	return bytes
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// process is the state of a process.
type process struct {
	pid     int
	program string
	pss     int64   // bytes
	cpu     float64 // seconds, in steps of 10 ms
}

// look reads the state of a process. ok is false if it has exited.
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

// program returns the name of a process. The name of a shim's file is a digest.
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

// cpuOf returns the sum of utime and stime, the 14th and 15th field of stat. The second field, in brackets, may contain any characters.
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

// processes lists the processes of the machine and the API proxy on the host.
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

// alone returns the proportional set sizes that the processes would have if they shared pages only with each other, by PID, in bytes. The
// kernel's figure divides a page of the components' files among the processes of all clusters on the host. It needs CAP_SYS_ADMIN, and omits
// processes that have exited.
func alone(ps []process) (map[int]int64, error) {
	users := map[uint64]int{} // page frame → how many of the processes map it
	frames := map[int][]uint64{}
	for _, p := range ps {
		f, err := mapped(p.pid)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read pages of %s: %w", p.program, err)
		}
		frames[p.pid] = f
		for _, frame := range f {
			users[frame]++
		}
	}
	out := map[int]int64{}
	page := float64(os.Getpagesize())
	for pid, f := range frames {
		bytes := 0.0
		for _, frame := range f {
			bytes += page / float64(users[frame])
		}
		out[pid] = int64(bytes)
	}
	return out, nil
}

// An entry of /proc/PID/pagemap, see proc(5) and Documentation/admin-guide/mm/pagemap.rst.
const (
	pagePresent = 1 << 63
	pageFrame   = 1<<55 - 1
)

// mapped returns the page frames that a process maps.
func mapped(pid int) ([]uint64, error) {
	dir := "/proc/" + strconv.Itoa(pid)
	maps, err := os.ReadFile(dir + "/maps")
	if err != nil {
		return nil, err
	}
	pages, err := os.Open(dir + "/pagemap")
	if err != nil {
		return nil, err
	}
	defer pages.Close()
	var frames []uint64
	size := uint64(os.Getpagesize())
	for line := range strings.Lines(string(maps)) { // "00400000-09a2b000 r-xp 00000000 fe:00 1234 /opt/slipway/bin/kube"
		var begin, end uint64
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &begin, &end, &mode); err != nil {
			return nil, fmt.Errorf("read maps: %q: %w", line, err)
		}
		if !strings.HasPrefix(mode, "r") || strings.Contains(line, "[v") { // reserved address space; vdso, vvar, vsyscall
			continue
		}
		entries := make([]byte, (end-begin)/size*8)
		n, err := pages.ReadAt(entries, int64(begin/size*8))
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		for ; n >= 8; n, entries = n-8, entries[8:] {
			if e := binary.NativeEndian.Uint64(entries); e&pagePresent != 0 && e&pageFrame != 0 {
				frames = append(frames, e&pageFrame)
			}
		}
	}
	return frames, nil
}
