// SPDX-License-Identifier: Apache-2.0

// Package systemd is a host for machines whose PID 1 is systemd: each of a plan's units is a systemd
// service, which systemd restarts when it exits, even while no agent runs. The agent decides what runs and
// when it is started first, and checks readiness and health. Items that are not units are passed to
// package files.
//
// The package talks to systemd over its private socket and needs no message bus. Unit files are in /run,
// so they do not survive a boot and the agent writes them again. It never touches units without its name
// prefix, does not poll for changes that systemd signals, and does not restart units because the agent was
// restarted.
//
// Read [Host] and [Config] first, then unit, which has a diagram of a unit's life; [PreStart] runs before
// each start.
//
//	h, err := systemd.New(systemd.Config{StateDir: "/run/slipway/systemd", LogDir: "/var/log/slipway", Exe: exe, …})
//	defer h.Close() // units keep running
//	h.Do(ctx, plan.Step{Verb: plan.Create, …}, entry)
package systemd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/reconcile"
	render "github.com/slipway-project/slipway/internal/render/systemd"
)

// unitDir is the systemd directory for unit files that do not survive a boot.
const unitDir = "/run/systemd/system"

// Config configures a Host.
type Config struct {
	StateDir string // records of the units; must be on a file system that is emptied at boot
	LogDir   string
	Exe      string // this program, which systemd runs as "EXE unit-pre-start …" before each start, see PreStart
	Files    units.Files
	Probe    units.Prober
	Log      *slog.Logger

	// Optional.
	Prefix  string            // prefix of service names; empty means slipway-
	OnEvent func(units.Event) // called for each change of a unit's state; must not block and must not call the Host
	LogSize int64             // size at which logs are rotated; 0 means 16 MiB

	health       units.Health  // tests use shorter intervals
	logsInterval time.Duration // between two checks of log sizes
}

// Host runs units through systemd. It is safe for concurrent use. Only one Host at a time can use a
// prefix.
type Host struct {
	conf    Config
	bus     *bus
	logs    units.Logs
	entries units.EntryCache
	ctx     context.Context //nolint:containedctx // the life of the Host's own goroutines, ended by Close
	cancel  context.CancelFunc
	running sync.WaitGroup
	units   units.Set[*unit]
}

var _ reconcile.Host = (*Host)(nil)

// New connects to systemd and adopts every unit that an earlier agent of this boot has recorded.
func New(c Config) (*Host, error) {
	if c.StateDir == "" || c.LogDir == "" || c.Exe == "" || c.Files == nil || c.Probe == nil || c.Log == nil {
		return nil, errors.New("systemd: StateDir, LogDir, Exe, Files, Probe and Log are required")
	}
	c = withDefaults(c)
	if err := errors.Join(os.MkdirAll(c.StateDir, 0o700), os.MkdirAll(c.LogDir, 0o755), os.MkdirAll(unitDir, 0o755)); err != nil {
		return nil, err
	}
	h := &Host{conf: c, logs: units.Logs{Dir: c.LogDir}}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.bus = &bus{log: c.Log, changed: h.wakeUnits}
	if err := errors.Join(h.bus.open(h.ctx, h.running.Go), h.adopt()); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	h.running.Go(func() { h.logs.RotateLoop(h.ctx, c.logsInterval, c.LogSize, h.units.Names, c.Log) })
	return h, nil
}

func withDefaults(c Config) Config {
	c.Prefix = cmp.Or(c.Prefix, render.Prefix)
	if c.OnEvent == nil {
		c.OnEvent = func(units.Event) {}
	}
	c.LogSize = cmp.Or(c.LogSize, 16<<20)
	c.logsInterval = cmp.Or(c.logsInterval, 10*time.Second)
	if c.health.Period == 0 {
		c.health = units.Health{Period: units.HealthPeriod, UnhealthyPeriod: units.UnhealthyPeriod, HungAfter: units.HungAfter}
	}
	c.health.Prober = c.Probe
	return c
}

// Close stops watching and leaves every unit running.
func (h *Host) Close() error {
	h.cancel()
	h.running.Wait()
	return nil
}

// adopt takes over the units that have a record. Units without one are unknown until a plan contains them.
func (h *Host) adopt() error {
	records, err := filepath.Glob(filepath.Join(h.conf.StateDir, "*.state*"))
	if err != nil {
		return err
	}
	for _, path := range records {
		name, ok := strings.CutSuffix(strings.TrimSuffix(filepath.Base(path), ".prev"), ".state")
		if !ok || h.units.Get(name) != nil { // a temporary file, or the other generation of a record
			continue
		}
		u := h.unitOrNew(name)
		if err := u.loadRecord(); err != nil {
			return fmt.Errorf("adopt unit %s: %w", name, err)
		}
		if err := u.refresh(h.ctx); err != nil {
			return fmt.Errorf("adopt unit %s: %w", name, err)
		}
	}
	return nil
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

// wakeUnits makes the unit with this object path observe its service again. An empty object means all
// units.
func (h *Host) wakeUnits(object string) {
	for _, u := range h.units.All() {
		if object == "" || u.object == object {
			select {
			case u.wake <- struct{}{}:
			default: // it is about to observe anyway
			}
		}
	}
}

// unitOrNew returns the named unit. A new unit follows its service from now on.
func (h *Host) unitOrNew(name string) *unit {
	return h.units.GetOrNew(name, func() *unit {
		u := newUnit(h, name)
		h.running.Go(u.followLoop)
		return u
	})
}

// Observe implements reconcile.Host.
func (h *Host) Observe(ctx context.Context, e plan.Entry) (plan.State, error) {
	h.entries.Add(e)
	spec, ok := e.Item.(plan.Unit)
	if !ok {
		return h.conf.Files.Observe(ctx, e)
	}
	if err := errors.Join(ctx.Err(), checkName(e)); err != nil {
		return plan.State{}, err
	}
	if spec.Oneshot {
		return h.observeOneshot(ctx, spec)
	}
	u := h.unitOrNew(spec.Name)
	if err := u.refresh(ctx); err != nil {
		return plan.State{}, err
	}
	u.mu.Lock()
	unknown := u.rec.Unit.Name == "" && u.state.isGone()
	u.mu.Unlock()
	if unknown {
		return plan.State{Existence: plan.Absent, Detail: "it has never been started"}, nil
	}
	inputs, err := h.fingerprints(spec)
	if err != nil {
		return plan.State{}, fmt.Errorf("observe %s: %w", e.Ref, err)
	}
	return u.observe(e, spec, inputs), nil
}

// Do implements reconcile.Host.
func (h *Host) Do(ctx context.Context, s plan.Step, e plan.Entry) error {
	h.entries.Add(e)
	spec, ok := e.Item.(plan.Unit)
	if !ok {
		return h.conf.Files.Do(ctx, s, e)
	}
	if err := errors.Join(ctx.Err(), checkName(e)); err != nil {
		return err
	}
	u := h.unitOrNew(spec.Name)
	switch {
	case s.Verb == plan.Remove:
		return u.remove(ctx)
	case spec.Oneshot:
		return u.runOnce(ctx, e, spec)
	}
	return u.run(ctx, e, spec)
}

// Await implements reconcile.Host. A unit that exits meanwhile is restarted by systemd and still awaited.
func (h *Host) Await(ctx context.Context, e plan.Entry, waiting func(reason string)) error {
	h.entries.Add(e)
	spec, ok := e.Item.(plan.Unit)
	if !ok {
		return h.conf.Files.Await(ctx, e, waiting)
	}
	u := h.unitOrNew(spec.Name)
	if spec.Oneshot {
		return u.awaitEnd(ctx, e, waiting)
	}
	return u.await(ctx, waiting)
}

// checkName rejects names that are not valid in systemd service names or would escape a directory.
func checkName(e plan.Entry) error {
	name := e.Item.Key()
	for _, c := range name {
		if c > 0x7e || !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:_.-@", c) {
			return fmt.Errorf("%s: invalid unit name: %q is not allowed in a service name", e.Ref, c)
		}
	}
	if name == "" || name[0] == '.' || len(name) > 200 {
		return fmt.Errorf("%s: invalid unit name", e.Ref)
	}
	return nil
}

func (h *Host) fingerprints(spec plan.Unit) ([]units.Input, error) {
	return h.entries.Fingerprints(spec, h.conf.Files.Fingerprint)
}

// remove stops the unit and deletes its unit file and records. systemd then forgets it.
func (u *unit) remove(ctx context.Context) error {
	u.ops.Lock()
	defer u.ops.Unlock()
	if err := u.stopLocked(ctx); err != nil {
		return err
	}
	dir := u.host.conf.StateDir
	err := errors.Join(
		removeFiles(filepath.Join(unitDir, u.service)), u.host.bus.resetFailed(ctx, u.service),
		removeRecord(recordPath(dir, u.name)), removeRecord(startNotePath(dir, u.name)),
	)
	if err != nil {
		return fmt.Errorf("remove %s: %w", u.name, err)
	}
	u.host.units.Delete(u.name, u)
	u.cancel()
	return nil
}

// Logs returns the path of a unit's log. Rotated logs have .1, .2 and .3 appended.
func (h *Host) Logs(unit string) string { return h.logs.Path(unit) }

// Status returns the status of every unit, sorted by name.
func (h *Host) Status() []units.Status {
	var all []units.Status
	for _, u := range h.units.All() {
		u.mu.Lock()
		s := units.Status{
			Name: u.name, PID: u.state.mainPID, Since: u.state.since, Ready: u.rec.Ready, Restarts: u.rec.Restarts,
			LastExit: u.rec.LastExit, Oneshot: u.rec.Unit.Oneshot,
		}
		if !s.Ready {
			s.Waiting = u.reason
		}
		known := u.rec.Unit.Name != ""
		u.mu.Unlock()
		if known {
			all = append(all, s)
		}
	}
	return all
}
