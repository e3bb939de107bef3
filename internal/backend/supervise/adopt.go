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

// adopt takes over every unit that an earlier Host of this boot has recorded.
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

// adoptUnit takes over one unit by its record, and starts to watch it if it should be running.
func (h *Host) adoptUnit(name string) error {
	u := newUnit(h, name)
	stale, err := durable.Read(h.recordPath(name), recordSchema, &u.rec)
	if err != nil {
		return h.adoptDamaged(u, err)
	}
	if u.rec.Boot != h.boot { // the directory survived a boot, processes did not
		return nil
	}
	h.units.Put(name, u)
	h.entries.Restore(u.rec.Inputs)
	u.adopted, u.adoptedAt = true, time.Now()
	if err := u.findProcess(stale); err != nil {
		return err
	}
	if u.rec.Unit.Oneshot || u.rec.Phase == stopping || u.rec.Phase == stopped {
		return nil
	}
	if u.proc == nil {
		u.reason = "exited while no agent was running"
	}
	u.startWatching()
	return nil
}

// findProcess finds the main process of a record. If the record is stale or a start was under way, the
// cgroup is searched instead.
func (u *unit) findProcess(stale bool) (err error) {
	r := &u.rec
	if !stale && (r.Phase == started || r.Phase == stopping) {
		if isAlive(r.PID, r.Start) {
			p, err := u.host.watch(r.PID)
			if err == nil && p.start == r.Start { // the PID was not reused in between
				u.proc = p
				u.host.conf.Log.Info("unit adopted", "unit", u.name, "pid", r.PID, "ready", r.Ready)
				return nil
			}
			if err == nil {
				p.close()
			}
			if err = ignoreNotFound(err); err != nil {
				return err
			}
		}
		return u.noProcess()
	}
	if !stale && r.Phase != starting {
		return nil
	}
	r.Token = "" // a starting process exits from here on, unless it is found now
	if err := u.update(func() {}); err != nil {
		return err
	}
	pid, token := u.host.findMain(u.name, r.Unit.Args)
	if pid == 0 {
		return u.noProcess()
	}
	if u.proc, err = u.host.watch(pid); err != nil {
		return errors.Join(ignoreNotFound(err), u.noProcess())
	}
	u.host.conf.Log.Info("unit adopted from its cgroup", "unit", u.name, "pid", pid)
	return u.update(func() { r.Phase, r.PID, r.Start, r.Token = started, u.proc.pid, u.proc.start, token })
}

// noProcess records that the unit has no process.
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

// adoptDamaged handles an unreadable record. If nothing runs in the unit's cgroup, the record is deleted.
// Otherwise the main process is kept, and replaced once the plan says how the unit should run.
func (h *Host) adoptDamaged(u *unit, cause error) error {
	h.conf.Log.Error("unit record not readable", "unit", u.name, "error", cause)
	var p *process
	if pid, _ := h.findMain(u.name, nil); pid != 0 {
		var err error
		if p, err = h.watch(pid); ignoreNotFound(err) != nil {
			return err
		}
	}
	if p == nil { // the next start uses the plan, which has the data guard
		return errors.Join(removeIfExists(h.recordPath(u.name)), removeIfExists(h.recordPath(u.name)+".prev"))
	}
	u.rec = record{Boot: h.boot, Unit: plan.Unit{Name: u.name}, Phase: started, PID: p.pid, Start: p.start, Since: time.Now()}
	u.proc, u.reason, u.adopted, u.adoptedAt = p, "its record was damaged", true, time.Now()
	h.units.Put(u.name, u)
	u.rec.Phase = stopping // the next step of the unit stops it
	return nil
}

// findMain finds a unit's main process by its cgroup, arguments and environment. Child processes may have
// inherited the environment and may lead their own sessions, so the arguments decide; of several matches
// the oldest is returned. The PID is 0 if there is none.
func (h *Host) findMain(name string, args []string) (pid int, token string) {
	var oldest uint64
	args = slices.DeleteFunc(slices.Clone(args), func(s string) bool { return s == "" })
	for _, candidate := range h.cgroups.processes(name) {
		if sid, err := unix.Getsid(candidate); err != nil || sid != candidate {
			continue
		}
		have, env := readProcess(candidate)
		if n := len(have) - len(args); n < 0 || !slices.Equal(have[n:], args) || !slices.Contains(env, envUnit+"="+name) { // equal, or Exec before it becomes the program
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

// readProcess returns a process's arguments and environment. It retries while both are empty, because the
// kernel shows neither while a process executes a new program, and such a process must not be overlooked:
// it may have compared its token already. Processes that stay without either are not units.
func readProcess(pid int) (args, env []string) {
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		args, env = nulSeparated(fmt.Sprintf("/proc/%d/cmdline", pid)), nulSeparated(fmt.Sprintf("/proc/%d/environ", pid))
		if (len(args) > 0 && len(env) > 0) || isZombie(pid) {
			break
		}
	}
	return args, env
}

func ignoreNotFound(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func removeIfExists(path string) error {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}
