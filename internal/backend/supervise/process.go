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

// process is a unit's main process, started here or adopted. It is held by a pidfd, which never refers to
// another process.
type process struct {
	pid      int
	start    uint64
	fd       *os.File
	done     chan struct{} // closed when it has ended
	exit     units.Exit    // valid once done is closed
	termSent bool          // guarded by the watcher while there is one, then by unit.ops
}

// watch starts to watch a process. It uses no thread: the pidfd becomes readable when the process ends.
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
		if err != nil || !ended { // close closed the descriptor
			return
		}
		if p.exit = reap(pid); p.exit.Lost {
			p.exit = p.adoptedExit(conn)
		}
		close(p.done)
	})
	return p, nil
}

// adoptedExit asks the kernel (6.15 or newer) for the exit status of a process that was not our child. The
// status is available once init has reaped the process, which is when the pidfd reports a hangup.
func (p *process) adoptedExit(conn syscall.RawConn) units.Exit {
	e := units.Exit{At: time.Now(), Code: -1, Lost: true}
	_ = conn.Control(func(fd uintptr) { // without an answer the exit code stays unknown
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

// reap returns the exit status of our child. Adopted processes are reaped by init; for them Lost is set.
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

// signal sends a signal through the pidfd, so that it never reaches another process with the same PID. It
// returns nil if the process has ended.
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

func (p *process) close() { _ = p.fd.Close() }

// startTime returns field 22 of /proc/PID/stat.
func startTime(pid int) (uint64, error) {
	fields, err := statFields(pid)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(fields[22-3], 10, 64)
}

// statFields returns the fields of /proc/PID/stat from the third (state) on. The second, the name, may
// contain spaces and parentheses.
func statFields(pid int) ([]string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return nil, fmt.Errorf("read /proc/%d/stat: too few fields", pid)
	}
	return fields, nil
}

// isAlive reports whether the process with this PID and start time is running. Zombies are not.
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
