// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	readyWord      = "ready"
	agentStopLimit = 30 * time.Second
	firstDelay     = 50 * time.Millisecond
	longestDelay   = 5 * time.Second
	soundAfter     = 10 * time.Second // an agent that lived this long has not died of its start
	logLimit       = 16 << 20
)

// DownSignal is PID 1's word to the agent that the machine goes down: stop the units, then end. Any other end of an agent, by
// SIGTERM too, leaves them running for the next agent.
const DownSignal = unix.SIGUSR2

// InitConfig says what PID 1 of a machine starts.
type InitConfig struct {
	Agent   []string // argv; Agent[0] is a path
	LogFile string   // optional: /var/log/slipway/agent.log
	Log     *slog.Logger
}

// Init is PID 1 of a machine. It starts the agent, starts it again whenever it ends, and reaps whatever loses its parent: the
// components of an agent that was killed become its children and keep running. Signals:
//
//	SIGTERM  the agent gets [DownSignal] and up to 30 s; then everything is killed and Init returns: the machine ends
//	SIGUSR1  the agent is killed and started again at once
//
// All others are ignored. Errors before the agent's first start are returned, for the host to read; later ones are logged.
func Init(ctx context.Context, c InitConfig) error {
	if c.LogFile == "" {
		c.LogFile = "/var/log/slipway/agent.log"
	}
	if err := prepareMachine(); err != nil {
		return err
	}
	signals := make(chan os.Signal, 64) // every signal leads to a full look around, so a lost one is no harm
	signal.Notify(signals)              // all: the default action of most would end the machine
	in := &pid1{InitConfig: c, delay: firstDelay, timer: time.NewTimer(0)}
	if err := tellReady(); err != nil {
		return err
	}
	return in.run(ctx, signals)
}

type pid1 struct {
	InitConfig
	agent   int // pid, 0 when there is none
	since   time.Time
	delay   time.Duration
	timer   *time.Timer // fires: start the agent
	stop    <-chan time.Time
	stopped bool
}

func (in *pid1) run(ctx context.Context, signals <-chan os.Signal) error {
	minute := time.NewTicker(time.Minute)
	defer minute.Stop()
	done := ctx.Done()
	for {
		in.reap()
		if in.stopped && in.agent == 0 {
			return in.killAll()
		}
		select {
		case s := <-signals:
			switch s {
			case unix.SIGTERM:
				in.beginStop()
			case unix.SIGUSR1:
				in.delay = 0
				in.signalAgent(unix.SIGKILL)
			}
		case <-done:
			done = nil
			in.beginStop()
		case <-in.timer.C:
			in.startAgent()
		case <-in.stop:
			in.Log.Warn("agent did not stop in time", "limit", agentStopLimit)
			in.signalAgent(unix.SIGKILL)
		case <-minute.C:
			in.capLog()
		}
	}
}

// startAgent does nothing when the machine stops or an agent runs.
func (in *pid1) startAgent() {
	if in.stopped || in.agent != 0 {
		return
	}
	in.since = time.Now()
	pid, err := in.spawn()
	if err != nil {
		in.Log.Error("agent cannot be started", "err", err, "again in", in.delay)
		in.again()
		return
	}
	in.agent = pid
	in.Log.Info("agent started", "pid", pid)
}

func (in *pid1) spawn() (int, error) {
	in.capLog()
	out, err := os.OpenFile(in.LogFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	return syscall.ForkExec(in.Agent[0], in.Agent, &syscall.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []uintptr{null.Fd(), out.Fd(), out.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
}

// again plans the agent's next start: at once after SIGUSR1, otherwise later and later until one lives long enough.
func (in *pid1) again() {
	if time.Since(in.since) >= soundAfter {
		in.delay = firstDelay
	}
	in.timer.Reset(in.delay)
	in.delay = min(max(2*in.delay, firstDelay), longestDelay)
}

// reap takes leave of every child that has ended.
func (in *pid1) reap() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if pid == in.agent {
			in.agent = 0
			in.Log.Warn("agent ended", "pid", pid, "exit", status.ExitStatus(), "signal", status.Signal(), "after", time.Since(in.since))
			in.again()
		}
	}
}

func (in *pid1) beginStop() {
	if in.stopped {
		return
	}
	in.Log.Info("machine stops")
	in.stopped = true
	in.stop = time.After(agentStopLimit)
	in.signalAgent(DownSignal)
}

func (in *pid1) signalAgent(sig unix.Signal) {
	if in.agent == 0 {
		in.timer.Reset(0)
		return
	}
	if err := unix.Kill(in.agent, sig); err != nil {
		in.Log.Error("agent cannot be signalled", "err", err)
	}
}

// killAll ends every other process of the namespace. Only PID 1 may do that: anywhere else it would be the host's processes.
func (in *pid1) killAll() error {
	if os.Getpid() != 1 {
		return nil
	}
	_ = unix.Kill(-1, unix.SIGKILL)
	return nil // the kernel waits for them before it lets this process end
}

// capLog keeps one old log. The agent and its children write with O_APPEND, so the file may shrink under them.
func (in *pid1) capLog() {
	info, err := os.Stat(in.LogFile)
	if err != nil || info.Size() < logLimit {
		return
	}
	data, err := os.ReadFile(in.LogFile)
	if err == nil {
		err = errors.Join(os.WriteFile(in.LogFile+".1", data, 0o640), os.Truncate(in.LogFile, 0))
	}
	if err != nil {
		in.Log.Error("agent log cannot be rotated", "err", err)
	}
}

// tellReady tells the host that the machine stands.
func tellReady() error {
	if err := sayReady(); err != nil {
		return err
	}
	if err := unix.Close(readyPipe); err != nil && !errors.Is(err, unix.EBADF) {
		return fmt.Errorf("tell that machine is ready: %w", err)
	}
	return nil
}

// readyPipe is the pipe that runc passed on. The host reads it to its end.
const readyPipe = 3

// sayReady tells the host, but leaves the pipe open until this process ends or has become another program, and leaves a mark for a
// host that was not listening.
func sayReady() error {
	if err := os.WriteFile(filepath.Join(RunDir, readyMark), []byte(readyWord), 0o600); err != nil {
		return fmt.Errorf("mark machine ready: %w", err)
	}
	unix.CloseOnExec(readyPipe)
	if _, err := unix.Write(readyPipe, []byte(readyWord)); err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.EBADF) {
		return fmt.Errorf("tell that machine is ready: %w", err)
	}
	return nil
}

const readyMark = "machine-ready"

// readySince tells when the machine has left its mark in this boot.
func readySince(f folders) (time.Time, bool) {
	info, err := os.Stat(filepath.Join(f.run(), readyMark))
	if err != nil {
		return time.Time{}, false
	}
	return info.ModTime().UTC().Truncate(time.Second), true
}
