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
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	readyMessage   = "ready"
	agentStopLimit = 30 * time.Second
	firstDelay     = 50 * time.Millisecond
	longestDelay   = 5 * time.Second
	stableAfter    = 10 * time.Second // an agent that ran this long did not fail at its start: the delay is reset
	logLimit       = 16 << 20
)

// DownSignal is the signal by which PID 1 tells the agent that the machine shuts down: the agent stops its
// units, then exits. If the agent exits for any other reason, including SIGTERM, its units keep running for
// the next agent.
const DownSignal = unix.SIGUSR2

// InitConfig is the configuration of a machine's PID 1.
type InitConfig struct {
	Agent   []string // argv; Agent[0] is a path
	LogFile string   // optional: default is /var/log/slipway/agent.log
	Log     *slog.Logger
}

// Init is the main function of a machine's PID 1. It starts the agent, restarts it whenever it exits, and
// reaps orphans: if the agent is killed, its components become children of PID 1 and keep running. Signals:
//
//	SIGTERM  sends [DownSignal] to the agent, waits up to 30 s, kills everything and returns, which ends the machine
//	SIGUSR1  kills the agent and restarts it at once
//
// All other signals are ignored. Errors before the agent's first start are returned, so that the host sees
// them; later ones are logged.
func Init(ctx context.Context, c InitConfig) error {
	if c.LogFile == "" {
		c.LogFile = "/var/log/slipway/agent.log"
	}
	// runc cannot do this: mounts over /proc, and the cgroup v2 root that pods need.
	if err := isolateFromHost(); err != nil {
		return err
	}
	if err := leaveCgroupRoot("/sys/fs/cgroup"); err != nil {
		return err
	}
	signals := make(chan os.Signal, 64) // run checks everything after every signal, so a lost one does no harm
	signal.Notify(signals)              // all of them: the default action of most would end the machine
	in := &pid1{InitConfig: c, delay: firstDelay, timer: time.NewTimer(0)}
	if err := signalReady(); err != nil {
		return err
	}
	if err := unix.Close(readyPipe); err != nil && !errors.Is(err, unix.EBADF) {
		return fmt.Errorf("signal ready: %w", err)
	}
	return in.run(ctx, signals)
}

// pid1 is the state of [Init]. Only its run method uses it.
type pid1 struct {
	InitConfig
	agent   int       // pid, 0 if no agent runs
	since   time.Time // the agent's last start
	delay   time.Duration
	timer   *time.Timer      // starts the agent
	stop    <-chan time.Time // the agent's time limit after beginStop
	stopped bool
}

// run handles signals and exits of children until the machine stops.
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
			in.rotateLog()
		}
	}
}

// startAgent does nothing if the machine is stopping or an agent runs.
func (in *pid1) startAgent() {
	if in.stopped || in.agent != 0 {
		return
	}
	in.since = time.Now()
	pid, err := in.spawn()
	if err != nil {
		in.Log.Error("start agent", "err", err, "retryIn", in.delay)
		in.scheduleStart()
		return
	}
	in.agent = pid
	in.Log.Info("agent started", "pid", pid)
}

// spawn runs the agent in a session of its own. It uses ForkExec instead of os/exec, because reap collects
// all children.
func (in *pid1) spawn() (int, error) {
	in.rotateLog()
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

// scheduleStart schedules the agent's next start, with exponential backoff; after SIGUSR1 at once.
func (in *pid1) scheduleStart() {
	if time.Since(in.since) >= stableAfter {
		in.delay = firstDelay
	}
	in.timer.Reset(in.delay)
	in.delay = min(max(2*in.delay, firstDelay), longestDelay)
}

// reap collects all children that have exited.
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
			in.Log.Warn("agent exited", "pid", pid, "exit", status.ExitStatus(), "signal", status.Signal(), "after", time.Since(in.since))
			in.scheduleStart()
		}
	}
}

// beginStop asks the agent to stop and starts its time limit.
func (in *pid1) beginStop() {
	if in.stopped {
		return
	}
	in.Log.Info("machine stopping")
	in.stopped = true
	in.stop = time.After(agentStopLimit)
	in.signalAgent(DownSignal)
}

// signalAgent signals the agent. If none runs, it schedules a start at once, which does nothing while the
// machine stops.
func (in *pid1) signalAgent(sig unix.Signal) {
	if in.agent == 0 {
		in.timer.Reset(0)
		return
	}
	if err := unix.Kill(in.agent, sig); err != nil {
		in.Log.Error("signal agent", "err", err)
	}
}

// killAll kills every other process of the namespace. It does nothing unless this process is PID 1: it would
// kill the host.
func (in *pid1) killAll() error {
	if os.Getpid() != 1 {
		return nil
	}
	_ = unix.Kill(-1, unix.SIGKILL)
	return nil // the kernel ends them before this process is gone
}

// rotateLog keeps one old log. The agent and its children write with O_APPEND, so the file can be truncated
// under them.
func (in *pid1) rotateLog() {
	info, err := os.Stat(in.LogFile)
	if err != nil || info.Size() < logLimit {
		return
	}
	data, err := os.ReadFile(in.LogFile)
	if err == nil {
		err = errors.Join(os.WriteFile(in.LogFile+".1", data, 0o640), os.Truncate(in.LogFile, 0))
	}
	if err != nil {
		in.Log.Error("rotate agent log", "err", err)
	}
}

// readyPipe is the file descriptor that runc passes on. The host reads it until it is closed.
const readyPipe = 3

// signalReady reports to the host that the machine is ready, and writes a file for a host that was not
// listening. The pipe stays open until this process exits, closes it, or executes another program.
func signalReady() error {
	if err := os.WriteFile(filepath.Join(RunDir, readyFile), []byte(readyMessage), 0o600); err != nil {
		return fmt.Errorf("write ready file: %w", err)
	}
	unix.CloseOnExec(readyPipe)
	if _, err := unix.Write(readyPipe, []byte(readyMessage)); err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.EBADF) {
		return fmt.Errorf("signal ready: %w", err)
	}
	return nil
}

const readyFile = "machine-ready"

// readySince is the time at which the machine reported ready in this boot; ok is false if it has not.
func readySince(f paths) (since time.Time, ok bool) {
	info, err := os.Stat(filepath.Join(f.run(), readyFile))
	if err != nil {
		return time.Time{}, false
	}
	return info.ModTime().UTC().Truncate(time.Second), true
}

// BecomeSystemd is the counterpart of [Init] for machines with [Systemd]: it isolates the machine from the
// host, which only PID 1 can do, and then executes the systemd of the machine's root filesystem. It returns
// only on error.
func BecomeSystemd(log *slog.Logger) error {
	exe, err := findSystemd("/")
	if err != nil {
		return err
	}
	if err := isolateFromHost(); err != nil {
		return err
	}
	// systemd raises these for the whole kernel when it starts.
	for _, name := range []string{"fs/file-max", "fs/nr_open"} {
		value, err := os.ReadFile("/proc/sys/" + name)
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		if err := hideSysctl(name, strings.TrimSpace(string(value))); err != nil {
			return err
		}
	}
	if err := os.MkdirAll("/run/lock", 0o1777); err != nil {
		return err
	}
	// During exec, the process looks dead for a moment. The host waits until exec closes the pipe.
	if err := signalReady(); err != nil {
		return err
	}
	log.Info("starting systemd", "program", exe, "log", "journalctl in the machine")
	env := append(insideEnv(), "container=slipway", "SYSTEMD_GENERATOR_PATH="+noGenerator)
	return fmt.Errorf("execute systemd: %w", unix.Exec(exe, []string{exe, "--system"}, env))
}

// kubeletSysctls are the kernel settings that the kubelet requires. The kernel is shared with the host, so
// inside a machine they are regular files with the required values: the kubelet reads what it expects, and
// writes do not reach the kernel.
func kubeletSysctls() map[string]string {
	return map[string]string{
		"vm/overcommit_memory":      "1",
		"vm/panic_on_oom":           "0",
		"kernel/panic":              "10",
		"kernel/panic_on_oops":      "1",
		"kernel/keys/root_maxkeys":  "1000000",
		"kernel/keys/root_maxbytes": "25000000",
	}
}

// isolateFromHost mounts files over those settings of the host's kernel that programs in the machine would
// change.
func isolateFromHost() error {
	if os.Getpid() != 1 {
		return errors.New("machine-init must be PID 1 of a machine")
	}
	// Shared mounts are the default under systemd, too. Pods with Bidirectional mount propagation rely on it.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	for name, value := range kubeletSysctls() {
		if err := hideSysctl(name, value); err != nil {
			return err
		}
	}
	return nil
}

// hideSysctl mounts a file with this value over a kernel setting.
func hideSysctl(name, value string) error {
	own := filepath.Join("/run/sysctl", strings.ReplaceAll(name, "/", "."))
	target := filepath.Join("/proc/sys", name)
	if _, err := os.Stat(target); errors.Is(err, os.ErrNotExist) {
		return nil // this kernel does not have the setting
	}
	err := errors.Join(os.MkdirAll("/run/sysctl", 0o755), os.WriteFile(own, []byte(value+"\n"), 0o644))
	if err == nil {
		err = unix.Mount(own, target, "", unix.MS_BIND, "")
	}
	if err != nil {
		return fmt.Errorf("hide %s: %w", target, err)
	}
	return nil
}

// leaveCgroupRoot moves PID 1 into a child of the cgroup v2 root and enables the controllers for children: a
// cgroup that has processes cannot enable controllers. It does nothing on cgroup v1.
func leaveCgroupRoot(root string) error {
	controllers, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read cgroup controllers: %w", err)
	}
	own := filepath.Join(root, "init")
	if err := os.MkdirAll(own, 0o755); err != nil {
		return fmt.Errorf("create init cgroup: %w", err)
	}
	if err := os.WriteFile(filepath.Join(own, "cgroup.procs"), []byte("0"), 0o644); err != nil {
		return fmt.Errorf("enter init cgroup: %w", err)
	}
	for c := range strings.FieldsSeq(string(controllers)) {
		// Separately: a controller that cannot be enabled, such as a threaded one, must not affect the others.
		_ = os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+"+c), 0o644)
	}
	return nil
}
