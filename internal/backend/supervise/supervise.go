// SPDX-License-Identifier: Apache-2.0

// Package supervise is a host that runs a plan's units itself: each in its own session and cgroup,
// watched, restarted when it exits, with its output in a log file. Units do not depend on the supervising
// process: it may be killed at any moment, and the next [Host] adopts the running units. Items that are
// not units are passed to package files.
//
// The package does not decide what should run. It never starts two copies of a unit, restarts without
// limit, and kills only processes in a unit's own cgroup.
//
// Read [Host] and [Config] first, then unit, which has a diagram of a unit's life.
//
//	h, err := supervise.New(supervise.Config{StateDir: "/run/slipway/units", LogDir: "/var/log/slipway", Files: f, Probe: p, Log: log})
//	defer h.Close() // units keep running
//	h.Do(ctx, plan.Step{Verb: plan.Create, …}, entry)
package supervise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// Config configures a Host.
type Config struct {
	StateDir string // one record per unit; must be on a file system that is emptied at boot, and short enough for socket paths
	LogDir   string
	Files    units.Files
	Probe    units.Prober
	Log      *slog.Logger

	// Optional.
	Limits       string            // file with the resource limits of components, read before each start, see setLimits
	CgroupRoot   string            // mount point of the cgroup hierarchies; empty means /sys/fs/cgroup
	CgroupParent string            // directory of the units' cgroups in each hierarchy; empty means slipway
	ExecCommand  []string          // command that calls Exec with the appended arguments; empty means this binary with unit-exec
	OnEvent      func(units.Event) // called for each change of a unit's state; must not block and must not call the Host
	LogSize      int64             // size at which logs are rotated; 0 means 16 MiB

	intervals intervals // tests use shorter ones
}

// intervals are the periods of regular checks and the limits for units.
type intervals struct {
	health    time.Duration // between two health checks of a ready unit
	unhealthy time.Duration // between two health checks of an unhealthy unit
	hung      time.Duration // how long a unit may stay unhealthy before it is restarted
	logs      time.Duration // between two checks of log sizes
	down      time.Duration // how long a process must have been unready to count as down
	notify    time.Duration // how long an adopted process may take to send READY=1 before it is assumed to have sent it earlier
}

// Host supervises units. It is safe for concurrent use. Only one Host at a time can use a state directory.
type Host struct {
	conf    Config
	boot    string
	cgroups cgroups
	lock    *os.File
	ctx     context.Context //nolint:containedctx // the life of the Host's own goroutines, ended by Close
	cancel  context.CancelFunc
	running sync.WaitGroup

	logs    units.Logs
	entries units.EntryCache // resolves the inputs of units
	units   units.Set[*unit]
}

var _ reconcile.Host = (*Host)(nil)

// New adopts the running units, restarts those that exited while no agent was running, and supervises them
// from then on.
func New(c Config) (*Host, error) {
	if c.StateDir == "" || c.LogDir == "" || c.Files == nil || c.Probe == nil || c.Log == nil {
		return nil, errors.New("supervise: StateDir, LogDir, Files, Probe and Log are required")
	}
	c = withDefaults(c)
	if err := errors.Join(os.MkdirAll(c.StateDir, 0o700), os.MkdirAll(c.LogDir, 0o755)); err != nil {
		return nil, err
	}
	lock, err := lockDir(c.StateDir)
	if err != nil {
		return nil, err
	}
	h := &Host{conf: c, lock: lock, logs: units.Logs{Dir: c.LogDir}}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	if err := h.open(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	h.running.Go(func() { h.logs.RotateLoop(h.ctx, c.intervals.logs, c.LogSize, h.units.Names, c.Log) })
	return h, nil
}

// open finds the cgroup hierarchies and adopts the units of this boot.
func (h *Host) open() (err error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return fmt.Errorf("read boot id: %w", err)
	}
	h.boot = strings.TrimSpace(string(boot))
	if h.cgroups, err = findCgroups(h.conf.CgroupRoot, h.conf.CgroupParent); err != nil {
		return err
	}
	return h.adopt()
}

func withDefaults(c Config) Config {
	if c.CgroupRoot == "" {
		c.CgroupRoot = "/sys/fs/cgroup"
	}
	if c.CgroupParent == "" {
		c.CgroupParent = "slipway"
	}
	if len(c.ExecCommand) == 0 {
		c.ExecCommand = []string{"/proc/self/exe", "unit-exec"}
	}
	if c.OnEvent == nil {
		c.OnEvent = func(units.Event) {}
	}
	if c.LogSize == 0 {
		c.LogSize = 16 << 20
	}
	if c.intervals == (intervals{}) {
		c.intervals = intervals{health: units.HealthPeriod, unhealthy: units.UnhealthyPeriod, hung: units.HungAfter, down: units.DownAfter, logs: 10 * time.Second, notify: 5 * time.Second}
	}
	return c
}

// lockDir locks a state directory against other Hosts. It tries for half a second, because a child between
// fork and exec holds the lock of an agent that has just died.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for range 100 {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return f, nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil, errors.Join(fmt.Errorf("lock %s: another agent supervises these units: %w", dir, err), f.Close())
}

// Close stops supervising and leaves every unit running.
func (h *Host) Close() error {
	h.cancel()
	for _, u := range h.units.All() {
		u.detach()
	}
	h.running.Wait()
	return h.lock.Close()
}

// StopAll stops the units in order one after the other, then all others. It continues after errors and
// returns them all.
func (h *Host) StopAll(ctx context.Context, order []string) error {
	return h.units.StopAll(ctx, order, (*unit).stop)
}

// Stop stops one unit. It returns nil if the unit does not exist.
func (h *Host) Stop(ctx context.Context, name string) error {
	return h.units.Stop(ctx, name, (*unit).stop)
}

// Observe implements reconcile.Host.
func (h *Host) Observe(ctx context.Context, e plan.Entry) (plan.State, error) {
	h.entries.Add(e)
	spec, ok := e.Item.(plan.Unit)
	if !ok {
		return h.conf.Files.Observe(ctx, e)
	}
	if err := ctx.Err(); err != nil {
		return plan.State{}, err
	}
	u := h.units.Get(spec.Name)
	if spec.Oneshot {
		return h.observeOneshot(ctx, spec, u)
	}
	if u == nil {
		return plan.State{Existence: plan.Absent, Detail: "it has never been started"}, nil
	}
	inputs, err := h.fingerprints(spec)
	if err != nil {
		return plan.State{}, fmt.Errorf("observe %s: %w", e.Ref, err)
	}
	return u.observe(spec, inputs), nil
}

// Do implements reconcile.Host.
func (h *Host) Do(ctx context.Context, s plan.Step, e plan.Entry) error {
	h.entries.Add(e)
	spec, ok := e.Item.(plan.Unit)
	if !ok {
		return h.conf.Files.Do(ctx, s, e)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if spec.Name == "" || strings.ContainsAny(spec.Name, "/:\x00") || spec.Name[0] == '.' { // the name becomes part of paths
		return fmt.Errorf("%s: invalid unit name", e.Ref)
	}
	if s.Verb == plan.Remove {
		return h.remove(ctx, spec.Name)
	}
	u := h.units.GetOrNew(spec.Name, func() *unit { return newUnit(h, spec.Name) })
	if spec.Oneshot {
		return u.runOnce(ctx, spec)
	}
	return u.run(ctx, spec, s.Verb == plan.Replace)
}

// Await implements reconcile.Host. A unit that exits meanwhile is restarted and still awaited.
func (h *Host) Await(ctx context.Context, e plan.Entry, waiting func(reason string)) error {
	h.entries.Add(e)
	spec, ok := e.Item.(plan.Unit)
	if !ok {
		return h.conf.Files.Await(ctx, e, waiting)
	}
	u := h.units.Get(spec.Name)
	if u == nil {
		if s, err := h.Observe(ctx, e); err != nil || s.Ready { // a oneshot that ran before this boot
			return err
		}
		return fmt.Errorf("%s has never been started", e.Ref)
	}
	if spec.Oneshot {
		return u.awaitEnd(ctx, e, waiting)
	}
	return u.await(ctx, waiting)
}

func (h *Host) fingerprints(spec plan.Unit) ([]units.Input, error) {
	return h.entries.Fingerprints(spec, h.conf.Files.Fingerprint)
}

// remove stops a unit and deletes its cgroups and its record. The log is kept.
func (h *Host) remove(ctx context.Context, name string) error {
	u := h.units.Get(name)
	if u == nil {
		return nil
	}
	if err := u.stop(ctx); err != nil {
		return err
	}
	h.units.Delete(name, u)
	h.cgroups.remove(name)
	for _, path := range []string{h.recordPath(name), h.recordPath(name) + ".prev", h.notifyPath(name)} {
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}

func (h *Host) recordPath(name string) string { return filepath.Join(h.conf.StateDir, name+".state") }

func (h *Host) notifyPath(name string) string { return filepath.Join(h.conf.StateDir, name+".notify") }

func (u *unit) event(kind units.EventKind, pid int, detail string) {
	u.host.conf.Log.Debug("unit "+string(kind), "unit", u.name, "pid", pid, "detail", detail)
	u.host.conf.OnEvent(units.Event{At: time.Now(), Unit: u.name, Kind: kind, PID: pid, Detail: detail})
}

// Status returns the status of every unit, sorted by name.
func (h *Host) Status() []units.Status {
	var all []units.Status
	for _, u := range h.units.All() {
		u.mu.Lock()
		s := units.Status{
			Name: u.name, PID: u.rec.PID, Since: u.rec.Since, Ready: u.rec.Ready, Restarts: u.rec.Restarts,
			LastExit: u.rec.LastExit, Oneshot: u.rec.Unit.Oneshot,
		}
		if !s.Ready {
			s.Waiting = u.reason
		}
		if u.proc == nil {
			s.RestartAt = u.restartAt
		}
		u.mu.Unlock()
		all = append(all, s)
	}
	return all
}

// Logs returns the path of a unit's log. Rotated logs have .1, .2 and .3 appended.
func (h *Host) Logs(unit string) string { return h.logs.Path(unit) }

// Tail returns the last n lines of a unit's log.
func (h *Host) Tail(unit string, n int) ([]string, error) { return h.logs.Tail(unit, n) }
