// SPDX-License-Identifier: Apache-2.0

// Package supervise is the live host that runs a plan's units itself: each in its own session and cgroup, watched, restarted
// when it dies, with its output in a log file. Units do not depend on the process that supervises them: it may be killed at
// any moment, and the next [Host] adopts what runs. What is not a unit is handed to package files.
//
// It never decides what should run, never starts two copies of one unit, never gives up restarting, and kills only what is in
// a unit's own cgroup.
//
// Read [Host] and [Config] first, then unit, which draws a unit's life.
//
//	h, err := supervise.New(supervise.Config{StateDir: "/run/slipway/units", LogDir: "/var/log/slipway", Files: f, Probe: p, Log: log})
//	defer h.Close() // units go on
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

// Files is the host of everything that is not a unit; *files.Host is one.
type Files interface {
	reconcile.Host
	Fingerprint(item plan.Item) (string, error)
}

// Asker asks probes; *probe.Prober is one.
type Asker interface {
	Ask(ctx context.Context, pr plan.Probe) error
	Await(ctx context.Context, pr plan.Probe, waiting func(reason string)) error
}

// Config is what a Host works with.
type Config struct {
	StateDir string // one record per unit; on a file system that a boot empties, short enough for socket paths
	LogDir   string
	Files    Files
	Probe    Asker
	Log      *slog.Logger

	// Optional.
	Limits       string            // file of the limits that components have, see limit; looked at before each start
	CgroupRoot   string            // where the hierarchies are mounted; empty means /sys/fs/cgroup
	CgroupParent string            // folder of the units' cgroups in each hierarchy; empty means slipway
	ExecCommand  []string          // command that calls Exec with the arguments appended; empty means this binary with unit-exec
	OnEvent      func(units.Event) // called for each change of a unit's state; must not block and must not call the Host
	LogSize      int64             // size at which a log is rotated; 0 means 16 MiB

	pace pace // of what happens now and then; tests have less time
}

// pace is how often a Host looks at what does not announce itself.
type pace struct {
	health time.Duration // between two questions to a ready unit
	unwell time.Duration // between two questions to a unit that was ready and is not
	hung   time.Duration // such a unit gets so long to answer again, then it is restarted
	logs   time.Duration // between two looks at the sizes of logs
	down   time.Duration // a process that is not ready for so long is of no use to anybody
	deaf   time.Duration // an adopted process gets so long to say READY=1, then it is taken to have said it before
}

// Host supervises units. It is safe for concurrent use. Only one Host at a time has a state folder.
type Host struct {
	conf    Config
	boot    string
	cgroups cgroups
	lock    *os.File
	ctx     context.Context //nolint:containedctx // the life of the Host's own goroutines, ended by Close
	cancel  context.CancelFunc
	running sync.WaitGroup

	logs  units.Logs
	seen  units.Seen // what units may have as inputs
	units units.Set[*unit]
}

var _ reconcile.Host = (*Host)(nil)

// New adopts the units that run already, starts again those that died while nobody watched, and supervises them from then on.
func New(c Config) (*Host, error) {
	if c.StateDir == "" || c.LogDir == "" || c.Files == nil || c.Probe == nil || c.Log == nil {
		return nil, errors.New("supervise: StateDir, LogDir, Files, Probe and Log are required")
	}
	c = withDefaults(c)
	if err := errors.Join(os.MkdirAll(c.StateDir, 0o700), os.MkdirAll(c.LogDir, 0o755)); err != nil {
		return nil, err
	}
	lock, err := lockFolder(c.StateDir)
	if err != nil {
		return nil, err
	}
	h := &Host{conf: c, lock: lock, logs: units.Logs{Dir: c.LogDir}}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	if err := h.open(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

func (h *Host) open() (err error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return fmt.Errorf("read boot id: %w", err)
	}
	h.boot = strings.TrimSpace(string(boot))
	if h.cgroups, err = findCgroups(h.conf.CgroupRoot, h.conf.CgroupParent); err != nil {
		return err
	}
	if err := h.adopt(); err != nil {
		return err
	}
	h.running.Go(func() { h.logs.Keep(h.ctx, h.conf.pace.logs, h.conf.LogSize, h.units.Names, h.conf.Log) })
	return nil
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
	if c.pace == (pace{}) {
		c.pace = pace{health: units.HealthPeriod, unwell: units.UnwellPeriod, hung: units.HungAfter, down: units.DownAfter, logs: 10 * time.Second, deaf: 5 * time.Second}
	}
	return c
}

// lockFolder makes sure that no other Host is at work there. A child between fork and exec holds the lock of an agent that
// has just died for some microseconds, so it is tried more than once.
func lockFolder(dir string) (*os.File, error) {
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
	return nil, errors.Join(fmt.Errorf("lock %s: another agent supervises its units: %w", dir, err), f.Close())
}

// Close stops supervising and leaves every unit as it is.
func (h *Host) Close() error {
	h.cancel()
	for _, u := range h.units.All() {
		u.detach()
	}
	h.running.Wait()
	return h.lock.Close()
}

// StopAll stops the named units one after the other, then all others. It goes on when one does not stop.
func (h *Host) StopAll(ctx context.Context, order []string) error {
	return h.units.StopAll(ctx, order, (*unit).stop)
}

// Stop stops one unit. One that does not run, or that this machine never had, is no error.
func (h *Host) Stop(ctx context.Context, name string) error {
	return h.units.Stop(ctx, name, (*unit).stop)
}

func (h *Host) unitOrNew(name string) *unit {
	return h.units.GetOrNew(name, func() *unit { return newUnit(h, name) })
}

// Observe tells the entry's state, see reconcile.Host.
func (h *Host) Observe(ctx context.Context, e plan.Entry) (plan.State, error) {
	h.seen.See(e)
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

// Do carries out one step, see reconcile.Host.
func (h *Host) Do(ctx context.Context, s plan.Step, e plan.Entry) error {
	h.seen.See(e)
	spec, ok := e.Item.(plan.Unit)
	if !ok {
		return h.conf.Files.Do(ctx, s, e)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if spec.Name == "" || strings.ContainsAny(spec.Name, "/:\x00") || spec.Name[0] == '.' { // it becomes a part of paths
		return fmt.Errorf("%s: a unit cannot have this name", e.Ref)
	}
	if s.Verb == plan.Remove {
		return h.remove(ctx, spec.Name)
	}
	u := h.unitOrNew(spec.Name)
	if spec.Oneshot {
		return u.runOnce(ctx, spec)
	}
	return u.run(ctx, spec, s.Verb == plan.Replace)
}

// Await waits until the unit is ready. A unit that dies meanwhile is started again, and waiting goes on.
func (h *Host) Await(ctx context.Context, e plan.Entry, waiting func(reason string)) error {
	h.seen.See(e)
	spec, ok := e.Item.(plan.Unit)
	if !ok {
		return h.conf.Files.Await(ctx, e, waiting)
	}
	u := h.units.Get(spec.Name)
	if u == nil {
		if s, err := h.Observe(ctx, e); err != nil || s.Ready { // a oneshot whose work was done before this boot
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
	return h.seen.Fingerprints(spec, h.conf.Files.Fingerprint)
}

func (h *Host) remove(ctx context.Context, name string) error {
	u := h.units.Get(name)
	if u == nil {
		return nil
	}
	if err := u.stop(ctx); err != nil {
		return err
	}
	h.units.Forget(name, u)
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

// Status tells of every unit, by name.
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

// Logs is the path of a unit's log; older ones have .1, .2, .3 appended.
func (h *Host) Logs(unit string) string { return h.logs.Path(unit) }

// Tail is the last n lines that a unit has written.
func (h *Host) Tail(unit string, n int) ([]string, error) { return h.logs.Tail(unit, n) }
