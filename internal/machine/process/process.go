// SPDX-License-Identifier: Apache-2.0

// Package process identifies processes of this host for longer than their pids do. It never acts on a pid alone.
//
// Read [ID].
//
//	id, err := process.Identify(cmd.Process.Pid) // remember it
//	err = id.Signal(unix.SIGTERM)                // later: this very process, or nothing
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ID is one process: a pid is given to others later, an ID is not. The zero ID is no process.
type ID struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot, /proc/PID/stat field 22
	Boot  string `json:"boot"`  // /proc/sys/kernel/random/boot_id
}

// Identify tells which process has this pid now. A zombie is none.
func Identify(pid int) (ID, error) {
	start, state, err := statOf(pid)
	if err != nil {
		return ID{}, err
	}
	if state == 'Z' || state == 'X' {
		return ID{}, fmt.Errorf("process %d has ended", pid)
	}
	boot, err := BootID()
	return ID{PID: pid, Start: start, Boot: boot}, err
}

// Alive reports whether this very process runs. A zombie does not.
func (p ID) Alive() bool {
	if p.PID <= 1 {
		return false
	}
	now, err := Identify(p.PID)
	return err == nil && now == p
}

// Ending reports whether this very process has been killed or ends already: it will not do anything any more, though it is still
// there. The first process of a namespace may stay like that for a while, until all others of it have ended.
func (p ID) Ending() bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/stat")
	if err != nil {
		return false
	}
	status, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/status")
	return err == nil && p.Alive() && ending(string(stat), string(status)) // p was alive after it was asked about
}

// ending reads the flags of proc_pid_stat(5), of which PF_EXITING is set when an end has begun, and the signals that wait.
func ending(stat, status string) bool {
	const exiting = 0x4
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]) // begins with field 3
	if len(fields) > 6 {
		if flags, err := strconv.ParseUint(fields[6], 10, 64); err == nil && flags&exiting != 0 {
			return true
		}
	}
	for line := range strings.Lines(status) {
		name, mask, _ := strings.Cut(line, ":")
		if name != "SigPnd" && name != "ShdPnd" {
			continue
		}
		if bits, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64); err == nil && bits&(1<<(unix.SIGKILL-1)) != 0 {
			return true
		}
	}
	return false
}

// Signal sends sig to this very process, or nothing when it is gone.
func (p ID) Signal(sig unix.Signal) error {
	fd, err := p.open()
	if err != nil || fd < 0 {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", p.PID, err)
	}
	return nil
}

// open returns a pidfd, or -1 when the process is gone.
func (p ID) open() (int, error) {
	if !p.Alive() {
		return -1, nil
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("open process %d: %w", p.PID, err)
	}
	if !p.Alive() { // the pid may have been given away between the two calls
		unix.Close(fd)
		return -1, nil
	}
	return fd, nil
}

// Wait blocks until the process has ended, ctx is done, or limit has passed; ended tells which. The end of a PID 1 is the
// end of all processes of its namespace.
func (p ID) Wait(ctx context.Context, limit time.Duration) (ended bool, err error) {
	fd, err := p.open()
	if err != nil || fd < 0 {
		return err == nil, err
	}
	defer unix.Close(fd)
	deadline := time.Now().Add(limit)
	for ctx.Err() == nil && time.Now().Before(deadline) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 50) // 50 ms: how late a cancelled ctx is seen
		if n > 0 {
			return true, nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false, fmt.Errorf("wait for process %d: %w", p.PID, err)
		}
	}
	return false, ctx.Err()
}

func statOf(pid int) (start uint64, state byte, err error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, fmt.Errorf("read process %d: %w", pid, err)
	}
	// The name, in parentheses, may hold anything; the rest is counted from behind it, beginning with field 3.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("read process %d: short stat", pid)
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return start, fields[0][0], err
}

// BootID names this boot of the host.
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}
