// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/backend/units"
)

// process is a main process, ours or adopted, held by a descriptor that cannot come to mean another process.
type process struct {
	pid   int
	start uint64
	fd    *os.File
	done  chan struct{} // closed when it has ended
	exit  units.Exit    // readable when done is closed
	told  bool          // SIGTERM was sent; belongs to the keeper while there is one, then to who holds unit.ops
}

// watch begins to watch a process. It takes no thread: the descriptor becomes readable when the process ends.
func (h *Host) watch(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	p := &process{pid: pid, fd: os.NewFile(uintptr(fd), "pidfd"), done: make(chan struct{})}
	if p.start, err = startTime(pid); err != nil {
		return nil, errors.Join(err, p.fd.Close())
	}
	conn, err := p.fd.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, p.fd.Close())
	}
	h.running.Go(func() {
		ended := false
		err := conn.Read(func(fd uintptr) bool {
			n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			ended = n > 0
			return ended
		})
		if err != nil || !ended { // forget closed the descriptor
			return
		}
		if p.exit = reap(pid); p.exit.Lost {
			p.exit = p.adoptedExit(conn)
		}
		close(p.done)
	})
	return p, nil
}

// adoptedExit asks the kernel (6.15 and newer) how a process ended that was not our child. It knows once init has reaped it,
// which the descriptor tells by hanging up.
func (p *process) adoptedExit(conn syscall.RawConn) units.Exit {
	e := units.Exit{At: time.Now(), Code: -1, Lost: true}
	_ = conn.Control(func(fd uintptr) { // without an answer, nobody knows
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd)}}, 200)
		info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
		if unix.IoctlPidfdInfo(int(fd), &info) != nil || info.Mask&unix.PIDFD_INFO_EXIT == 0 {
			return
		}
		e.Lost = false
		if status := syscall.WaitStatus(info.Exit_code); status.Signaled() {
			e.Signal = status.Signal().String()
		} else {
			e.Code = status.ExitStatus()
		}
	})
	return e
}

// reap collects the exit status if the process was our child; an adopted one is reaped by init.
func reap(pid int) units.Exit {
	var status syscall.WaitStatus
	for {
		got, err := syscall.Wait4(pid, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		e := units.Exit{At: time.Now(), Code: -1}
		switch {
		case err != nil || got != pid:
			e.Lost = true
		case status.Signaled():
			e.Signal = status.Signal().String()
		default:
			e.Code = status.ExitStatus()
		}
		return e
	}
}

// signal never reaches another process, even if the PID is used again.
func (p *process) signal(s syscall.Signal) error {
	conn, err := p.fd.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := conn.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), s, nil, 0) }); err != nil {
		return err
	}
	if errors.Is(sent, unix.ESRCH) {
		return nil
	}
	return sent
}

func (p *process) isDone() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *process) forget() { _ = p.fd.Close() }

// startTime is field 22 of /proc/PID/stat, counted after the name, which may hold spaces and brackets.
func startTime(pid int) (uint64, error) {
	fields, err := statFields(pid)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(fields[22-3], 10, 64)
}

// statFields are the fields of /proc/PID/stat from the third (state) on.
func statFields(pid int) ([]string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return nil, fmt.Errorf("read /proc/%d/stat: it is too short", pid)
	}
	return fields, nil
}

// isAlive reports whether this very process still runs; a zombie does not.
func isAlive(pid int, start uint64) bool {
	fields, err := statFields(pid)
	return err == nil && fields[0] != "Z" && fields[0] != "X" && fields[22-3] == strconv.FormatUint(start, 10)
}

func nulSeparated(path string) []string {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(strings.Split(string(data), "\x00"), func(s string) bool { return s == "" })
}
