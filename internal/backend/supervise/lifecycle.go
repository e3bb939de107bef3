// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/core/plan"
)

const (
	envUnit     = "SLIPWAY_UNIT"
	envRevision = "SLIPWAY_REVISION"
	envToken    = "SLIPWAY_TOKEN"
)

// start starts the process of u.rec.Unit. The intent is recorded first: if the agent is killed at any
// point, the next one either finds the process by its cgroup, or changes the token so that the starting
// process exits (see Exec).
func (u *unit) start() error {
	if u.host.ctx.Err() != nil {
		return errClosed
	}
	u.mu.Lock()
	spec := u.rec.Unit
	u.mu.Unlock()
	inputs, err := u.host.fingerprints(spec)
	if err != nil {
		return fmt.Errorf("start %s: %w", u.name, err)
	}
	if err := u.openNotify(spec); err != nil {
		return fmt.Errorf("start %s: %w", u.name, err)
	}
	token, revision := rand.Text(), ""
	err = u.update(func() {
		u.rec.Boot, u.rec.Inputs, u.rec.Phase, u.rec.Token = u.host.boot, inputs, starting, token
		u.rec.PID, u.rec.Start, u.rec.Since, u.rec.Ready, u.rec.UnhealthySince = 0, 0, time.Now(), false, time.Time{}
		u.proc, u.restartAt, u.readyAt, u.reason = nil, time.Time{}, time.Time{}, "starting"
		revision = u.rec.revision()
	})
	if err != nil {
		return err
	}
	pid, err := u.fork(spec, revision, token)
	if err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", u.name, err), u.update(func() { u.rec.Phase = stopped }))
	}
	p, err := u.host.watch(pid)
	if err != nil {
		return errors.Join(fmt.Errorf("watch %s: %w", u.name, err), syscall.Kill(pid, syscall.SIGKILL))
	}
	u.updateOrLog(func() { // a lost record is harmless: the next agent finds the process by its cgroup
		u.rec.Phase, u.rec.PID, u.rec.Start, u.proc = started, p.pid, p.start, p
	})
	u.event(units.Started, p.pid, "")
	return nil
}

// fork starts a process that runs Exec, with its output appended to the unit's log.
func (u *unit) fork(spec plan.Unit, revision, token string) (pid int, err error) {
	if len(spec.Args) == 0 || !strings.HasPrefix(spec.Args[0], "/") {
		return 0, errors.New("the first argument must be an absolute path")
	}
	groups, err := u.host.cgroups.make(u.name)
	if err != nil {
		return 0, err
	}
	log, err := os.OpenFile(u.host.Logs(u.name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return 0, err
	}
	defer log.Close() // the process has its own descriptor
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close() // read only
	env, err := u.environment(spec, revision, token)
	if err != nil {
		return 0, err
	}
	command := u.host.conf.ExecCommand
	args := slices.Concat(command, []string{
		"-record", u.host.recordPath(u.name), "-token", token, "-oom", strconv.Itoa(spec.OOMScore), "-limits", u.host.conf.Limits, "-cgroups", strings.Join(groups, ":"), "--",
	}, spec.Args)
	attr := &syscall.ProcAttr{
		Dir: spec.Dir, Env: env,
		Files: []uintptr{null.Fd(), log.Fd(), log.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	}
	return u.host.cgroups.fork(u.name, command[0], args, attr)
}

// environment returns the environment of the unit's process. It inherits only the search path from the
// agent.
func (u *unit) environment(spec plan.Unit, revision, token string) ([]string, error) {
	path := cmp.Or(os.Getenv("PATH"), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	env := []string{"PATH=" + path, "HOME=/root"}
	env = append(env, spec.Env...)
	if spec.EnvFile != "" {
		more, err := os.ReadFile(spec.EnvFile)
		if err != nil {
			return nil, fmt.Errorf("read environment file: %w", err)
		}
		env = append(env, strings.Fields(string(more))...)
	}
	env = append(env, envUnit+"="+u.name, envRevision+"="+revision, envToken+"="+token)
	if spec.Ready.Kind == plan.ProbeNotify {
		env = append(env, "NOTIFY_SOCKET="+u.host.notifyPath(u.name))
	}
	return env, nil
}

// startWatching starts the goroutine that watches the unit and restarts it when it exits. A unit has at
// most one.
func (u *unit) startWatching() {
	ctx, cancel := context.WithCancel(u.host.ctx)
	ended := make(chan struct{})
	u.mu.Lock()
	u.cancelWatch, u.watchEnded = cancel, ended
	u.mu.Unlock()
	u.host.running.Go(func() {
		defer close(ended)
		u.watchLoop(ctx)
	})
}

// stopWatching ends the watcher and waits for it. The process keeps running.
func (u *unit) stopWatching() {
	u.mu.Lock()
	cancel, ended := u.cancelWatch, u.watchEnded
	u.cancelWatch, u.watchEnded = nil, nil
	u.mu.Unlock()
	if cancel != nil {
		cancel()
		<-ended
	}
}

// watchLoop waits for exits and restarts the unit until ctx ends.
func (u *unit) watchLoop(ctx context.Context) {
	for {
		if p := u.current(); p != nil {
			if !u.watchUntilExit(ctx, p) {
				return
			}
			u.exited(p)
		}
		if !u.waitForRestart(ctx) {
			return
		}
		if err := u.restart(ctx); err != nil {
			u.host.conf.Log.Warn("unit not started", "unit", u.name, "error", err)
			u.delay(err.Error())
		}
	}
}

// watchUntilExit checks readiness and health until the process exits or ctx ends, and reports whether the
// process has exited.
func (u *unit) watchUntilExit(ctx context.Context, p *process) (died bool) {
	checking, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	u.host.running.Go(func() {
		defer close(ended)
		u.checkReady(checking, p)
	})
	select {
	case <-ctx.Done():
	case <-p.done:
		died = true
	}
	cancel()
	<-ended
	return died
}

// exited records and reports an unexpected exit, and schedules the restart.
func (u *unit) exited(p *process) {
	p.close()
	exit := p.exit
	u.mu.Lock()
	if !u.readyAt.IsZero() && time.Since(u.readyAt) >= units.StableAfter {
		u.crashes = 0
	}
	exit.Cause, u.hung = u.hung, ""
	u.mu.Unlock()
	last, reason := u.host.logs.LastLine(u.name), exit.String()
	u.host.conf.Log.Warn("unit exited", "unit", u.name, "pid", p.pid, "exit", reason, "last_output", last)
	if u.host.logs.Full() { // its last output did not reach the log
		reason += ", no space left on device (" + u.host.conf.LogDir + ")"
	}
	if last != "" {
		reason += ", last output: " + last
	}
	u.event(units.Exited, p.pid, reason)
	u.updateOrLog(func() { u.proc, u.rec.PID, u.rec.Start, u.rec.LastExit = nil, 0, 0, &exit })
	u.delay(reason)
}

// delay schedules the next restart.
func (u *unit) delay(reason string) {
	u.updateOrLog(func() {
		wait := units.RestartDelay(u.crashes)
		u.crashes++
		u.rec.Phase, u.rec.Ready, u.readyAt = exited, false, time.Time{}
		u.restartAt = time.Now().Add(wait)
		u.reason = fmt.Sprintf("%s (%d in a row), restarting in %s", reason, u.crashes, wait.Round(10*time.Millisecond))
	})
}

// waitForRestart waits until the next restart is due. It returns false if ctx ends first.
func (u *unit) waitForRestart(ctx context.Context) bool {
	u.mu.Lock()
	at := u.restartAt
	u.mu.Unlock()
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

func (u *unit) restart(ctx context.Context) error {
	u.mu.Lock()
	spec := u.rec.Unit
	u.rec.Restarts++
	u.mu.Unlock()
	if spec.KillChildren { // leftover child processes would hold its ports and files
		if err := u.host.cgroups.kill(ctx, u.name); err != nil {
			return err
		}
	}
	return u.start()
}

const defaultStopTimeout = 10 * time.Second

// stop ends the unit's process with SIGTERM, and with SIGKILL after the stop timeout. If ctx ends first,
// the record says that the unit is stopping, and the next stop continues.
func (u *unit) stop(ctx context.Context) error {
	u.ops.Lock()
	defer u.ops.Unlock()
	return u.stopLocked(ctx)
}

// stopLocked is stop for callers that hold u.ops.
func (u *unit) stopLocked(ctx context.Context) error {
	u.stopWatching()
	u.mu.Lock()
	p, spec, never := u.proc, u.rec.Unit, u.rec.Phase == ""
	u.mu.Unlock()
	if never {
		return nil
	}
	if p != nil {
		var since time.Time
		if err := u.update(func() {
			if u.rec.Phase != stopping || u.rec.StopAt.IsZero() {
				u.rec.StopAt = time.Now()
			}
			u.rec.Phase, u.rec.Ready, u.reason, since = stopping, false, "stopping", u.rec.StopAt
		}); err != nil {
			return err
		}
		if err := u.end(ctx, p, since.Add(cmp.Or(spec.StopTimeout, defaultStopTimeout))); err != nil {
			return fmt.Errorf("stop %s: %w", u.name, err)
		}
		p.close()
		u.event(units.Stopped, p.pid, p.exit.String())
	}
	if spec.KillChildren {
		if err := u.host.cgroups.kill(ctx, u.name); err != nil {
			return fmt.Errorf("stop %s: %w", u.name, err)
		}
	}
	return u.update(func() {
		u.rec.Phase, u.rec.PID, u.rec.Start, u.rec.Ready = stopped, 0, 0, false
		u.proc, u.restartAt, u.reason = nil, time.Time{}, "stopped"
		if p != nil {
			u.rec.LastExit = &p.exit
		}
	})
}

// end sends SIGTERM once, because some programs treat a second one as an order to exit immediately, and
// SIGKILL at the deadline. The deadline stays the same when an interrupted stop is retried.
func (u *unit) end(ctx context.Context, p *process, deadline time.Time) error {
	if p.isDone() {
		return nil
	}
	if !p.termSent {
		if err := p.signal(syscall.SIGTERM); err != nil {
			return err
		}
		p.termSent = true
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-u.host.ctx.Done():
		return errClosed
	case <-timer.C:
	}
	u.host.conf.Log.Warn("unit killed after its stop timeout", "unit", u.name, "pid", p.pid)
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-u.host.ctx.Done():
		return errClosed
	}
}
