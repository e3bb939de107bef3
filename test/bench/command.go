// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// result is how a command ended.
type result struct {
	elapsed time.Duration
	cpu     float64 // seconds, of the command and the children that it waited for
	output  string  // both streams
	err     error
}

// command runs slipway to its end, or interrupts it as Ctrl-C does when ctx is done.
func (b *bench) command(ctx context.Context, args ...string) result {
	return runLine(ctx, append([]string{b.launcher.Exe}, args...)...)
}

// runLine runs a command line. It is a process group of its own: the terminal's Ctrl-C reaches bench alone, which interrupts what
// measures, once, and never what cleans up.
func runLine(ctx context.Context, line ...string) result {
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	begun := time.Now()
	err := cmd.Run()
	r := result{elapsed: time.Since(begun), output: output.String()}
	if cmd.ProcessState != nil {
		r.cpu = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	}
	if err != nil {
		r.err = fmt.Errorf("%s: %w\n%s", strings.Join(line, " "), err, r.output)
	}
	return r
}

// ownCPU is what this process has taken so far, in seconds.
func ownCPU() float64 { return rusage(unix.RUSAGE_SELF) }

// childrenCPU is what children of this process have taken that have ended.
func childrenCPU() float64 { return rusage(unix.RUSAGE_CHILDREN) }

func rusage(who int) float64 {
	var u unix.Rusage
	_ = unix.Getrusage(who, &u) // fails for a bad address only
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}
