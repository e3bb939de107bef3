// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// alone is the proportional set size that the processes would have if nobody else shared pages with them: the kernel's own
// figure divides a page of the components' files among the processes of all clusters on the host. It needs CAP_SYS_ADMIN.
// The result is by pid, in bytes; a process that has ended meanwhile is left out.
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

// mapped lists the page frames that a process maps.
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
