// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"cmp"
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

// start starts the process of u.rec.Unit. The intent is written first: whenever the agent is killed, the next one either finds
// the process by its cgroup, or has taken the token back so that a process on its way ends itself (see Exec).
func (u *unit) start() error {
	if u.host.ctx.Err() != nil {
		return errGone
	}
	u.mu.Lock()
	spec := u.rec.Unit
	u.mu.Unlock()
	inputs, err := u.host.fingerprints(spec)
	if err != nil {
		return fmt.Errorf("start %s: %w", u.name, err)
	}
	if err := u.openEar(spec); err != nil {
		return fmt.Errorf("start %s: %w", u.name, err)
	}
	token, revision := rand.Text(), ""
	err = u.update(func() {
		u.rec.Boot, u.rec.Inputs, u.rec.Phase, u.rec.Token = u.host.boot, inputs, starting, token
		u.rec.PID, u.rec.Start, u.rec.Since, u.rec.Ready, u.rec.Unwell = 0, 0, time.Now(), false, time.Time{}
		u.proc, u.restartAt, u.readyAt, u.reason = nil, time.Time{}, time.Time{}, "being started"
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
	u.updateOrLog(func() { // not written is no harm: the next agent finds the process by its cgroup
		u.rec.Phase, u.rec.PID, u.rec.Start, u.proc = started, p.pid, p.start, p
	})
	u.event(units.Started, p.pid, "")
	return nil
}

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

// environment is small and known: nothing of the agent's own gets in but the search path.
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
