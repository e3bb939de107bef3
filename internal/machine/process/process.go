// SPDX-License-Identifier: Apache-2.0

// Package process identifies processes on this host beyond the reuse of pids. It never acts on a pid alone.
//
// Read [ID].
//
//	id, err := process.Identify(cmd.Process.Pid) // store it
//	err = id.Signal(unix.SIGTERM)                // later: signals this process, or none if it has exited
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

// ID identifies one process. Unlike a pid, it is never reused. The zero ID matches no process.
type ID struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot, /proc/PID/stat field 22
	Boot  string `json:"boot"`  // /proc/sys/kernel/random/boot_id
}

// Identify returns the ID of the process that has this pid now. It is an error if there is none or it is a
// zombie.
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

// Alive reports whether this process runs. A zombie does not.
func (p ID) Alive() bool {
	if p.PID <= 1 {
		return false
	}
	now, err := Identify(p.PID)
	return err == nil && now == p
}

// Ending reports whether this process has been killed or is exiting, but still exists. PID 1 of a namespace
// may stay in this state until all other processes of the namespace have exited.
func (p ID) Ending() bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/stat")
	if err != nil {
		return false
	}
	status, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/status")
	return err == nil && p.Alive() && ending(string(stat), string(status)) // Alive last: the files belong to p
}

// ending checks the flags of proc_pid_stat(5) for PF_EXITING, and the pending signals for SIGKILL.
func ending(stat, status string) bool {
	const exiting = 0x4
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]) // fields[0] is field 3
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

// Signal sends sig to this process. It does nothing if the process is gone.
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

// open returns a pidfd, or -1 if the process is gone.
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
	if !p.Alive() { // the pid may have been reused between the two calls
		unix.Close(fd)
		return -1, nil
	}
	return fd, nil
}

// Wait blocks until the process exits, ctx ends, or limit has passed; ended reports whether it exited. When a
// PID 1 has exited, so have all processes of its namespace.
func (p ID) Wait(ctx context.Context, limit time.Duration) (ended bool, err error) {
	fd, err := p.open()
	if err != nil || fd < 0 {
		return err == nil, err
	}
	defer unix.Close(fd)
	deadline := time.Now().Add(limit)
	for ctx.Err() == nil && time.Now().Before(deadline) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 50) // 50 ms bounds the reaction to ctx
		if n > 0 {
			return true, nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false, fmt.Errorf("wait for process %d: %w", p.PID, err)
		}
	}
	return false, ctx.Err()
}

// statOf reads the start time and the state of a process from proc_pid_stat(5).
func statOf(pid int) (start uint64, state byte, err error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, fmt.Errorf("read process %d: %w", pid, err)
	}
	// The command name is in parentheses and may contain anything. Count fields from behind it, starting with
	// field 3.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("read process %d: short stat", pid)
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return start, fields[0][0], err
}

// BootID identifies this boot of the host.
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}
