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
