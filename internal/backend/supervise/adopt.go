// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/durable"
)

// adopt takes over every unit that an earlier Host of this boot has left a record of.
func (h *Host) adopt() error {
	records, err := filepath.Glob(filepath.Join(h.conf.StateDir, "*.state*"))
	if err != nil {
		return err
	}
	names := map[string]bool{}
	for _, path := range records {
		if name, ok := strings.CutSuffix(strings.TrimSuffix(filepath.Base(path), ".prev"), ".state"); ok {
			names[name] = true
		}
	}
	for name := range names {
		if err := h.adoptUnit(name); err != nil {
			return fmt.Errorf("adopt unit %s: %w", name, err)
		}
	}
	return nil
}

func (h *Host) adoptUnit(name string) error {
	u := newUnit(h, name)
	stale, err := durable.Read(h.recordPath(name), recordSchema, &u.rec)
	if err != nil {
		return h.adoptDamaged(u, err)
	}
	if u.rec.Boot != h.boot { // the folder outlived a boot; no process did
		return nil
	}
	h.units.Put(name, u)
	h.seen.Recall(u.rec.Inputs)
	u.adopted, u.adoptedAt = true, time.Now()
	if err := u.findProcess(stale); err != nil {
		return err
	}
	if u.rec.Unit.Oneshot || u.rec.Phase == stopping || u.rec.Phase == stopped {
		return nil
	}
	if u.proc == nil {
		u.reason = "died while no agent watched"
	}
	u.keep()
	return nil
}

// findProcess finds the main process of a record. What the record does not tell for certain, the cgroup does.
func (u *unit) findProcess(stale bool) (err error) {
	r := &u.rec
	if !stale && (r.Phase == started || r.Phase == stopping) {
		if isAlive(r.PID, r.Start) {
			p, err := u.host.watch(r.PID)
			if err == nil && p.start == r.Start { // it did not end and leave its PID to another in between
				u.proc = p
				u.host.conf.Log.Info("unit adopted", "unit", u.name, "pid", r.PID, "ready", r.Ready)
				return nil
			}
			if err == nil {
				p.forget()
			}
			if err = ignoreGone(err); err != nil {
				return err
			}
		}
		return u.noProcess()
	}
	if !stale && r.Phase != starting {
		return nil
	}
	r.Token = "" // a process on its way ends itself from here on, unless it is found now
	if err := u.update(func() {}); err != nil {
		return err
	}
	pid, token := u.host.findMain(u.name, r.Unit.Args)
	if pid == 0 {
		return u.noProcess()
	}
	if u.proc, err = u.host.watch(pid); err != nil {
		return errors.Join(ignoreGone(err), u.noProcess())
	}
	u.host.conf.Log.Info("unit adopted from its cgroup", "unit", u.name, "pid", pid)
	return u.update(func() { r.Phase, r.PID, r.Start, r.Token = started, u.proc.pid, u.proc.start, token })
}

func (u *unit) noProcess() error {
	return u.update(func() {
		if u.rec.Phase == stopping {
			u.rec.Phase = stopped
		} else if u.rec.Phase != stopped {
			u.rec.Phase = exited
		}
		u.rec.PID, u.rec.Start, u.rec.Ready = 0, 0, false
	})
}

// adoptDamaged handles a record that cannot be read. While nothing runs in the unit's cgroup there is nothing to lose;
// otherwise the main process is kept, and exchanged once the plan says how it should run.
func (h *Host) adoptDamaged(u *unit, cause error) error {
	h.conf.Log.Error("unit record not readable", "unit", u.name, "error", cause)
	var p *process
	if pid, _ := h.findMain(u.name, nil); pid != 0 {
		var err error
		if p, err = h.watch(pid); ignoreGone(err) != nil {
			return err
		}
	}
	if p == nil { // the next start is the plan's, which knows what guards the unit's data
		return errors.Join(removeIfThere(h.recordPath(u.name)), removeIfThere(h.recordPath(u.name)+".prev"))
	}
	u.rec = record{Boot: h.boot, Unit: plan.Unit{Name: u.name}, Phase: started, PID: p.pid, Start: p.start, Since: time.Now()}
	u.proc, u.reason, u.adopted, u.adoptedAt = p, "its record was damaged", true, time.Now()
	h.units.Put(u.name, u)
	u.rec.Phase = stopping // it is ended, not kept, as soon as a step concerns it
	return nil
}

// findMain finds a unit's main process by its cgroup and environment. Its children may have inherited the environment and may
// lead sessions of their own, so the arguments decide, and of several the oldest.
func (h *Host) findMain(name string, args []string) (pid int, token string) {
	var oldest uint64
	args = slices.DeleteFunc(slices.Clone(args), func(s string) bool { return s == "" })
	for _, candidate := range h.cgroups.processes(name) {
		if sid, err := unix.Getsid(candidate); err != nil || sid != candidate {
			continue
		}
		have, env := lookAt(candidate)
		if n := len(have) - len(args); n < 0 || !slices.Equal(have[n:], args) || !slices.Contains(env, envUnit+"="+name) { // equal, or Exec on its way there
			continue
		}
		start, err := startTime(candidate)
		if err != nil || isZombie(candidate) || (pid != 0 && start >= oldest) {
			continue
		}
		pid, oldest = candidate, start
		for _, e := range env {
			if t, ok := strings.CutPrefix(e, envToken+"="); ok {
				token = t
			}
		}
	}
	return pid, token
}

// lookAt reads a process's arguments and environment. While the kernel exchanges a process's program it has neither, and such a
// process must not be overlooked: it may have compared its token already. Programs without either are not ours.
func lookAt(pid int) (args, env []string) {
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		args, env = nulSeparated(fmt.Sprintf("/proc/%d/cmdline", pid)), nulSeparated(fmt.Sprintf("/proc/%d/environ", pid))
		if (len(args) > 0 && len(env) > 0) || isZombie(pid) {
			break
		}
	}
	return args, env
}

func ignoreGone(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}
