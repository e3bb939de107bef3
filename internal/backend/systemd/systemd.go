// SPDX-License-Identifier: Apache-2.0

// Package systemd is the live host on a machine whose PID 1 is systemd: each of a plan's units is a service of systemd's, which
// starts it again when it dies, also while no agent runs. The agent decides what runs and when it is started first, asks whether
// it is ready, and says so. What is not a unit is handed to package files.
//
// It talks to systemd over its private socket and needs no message bus. Unit files lie in /run, so a boot begins with none of
// them and the agent decides anew. It never touches a unit whose name has not its prefix, never polls for what systemd tells by
// signal, and restarts nothing because the agent was restarted.
//
// Read [Host] and [Config] first, then unit, which draws a unit's life; [Begin] is what runs before each start.
//
//	h, err := systemd.New(systemd.Config{StateDir: "/run/slipway/systemd", LogDir: "/var/log/slipway", Exe: exe, …})
//	defer h.Close() // units go on
//	h.Do(ctx, plan.Step{Verb: plan.Create, …}, entry)
package systemd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
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

// UnitDir is where systemd looks for unit files that a boot forgets.
const UnitDir = "/run/systemd/system"

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
	StateDir string // what is known of each unit; on a file system that a boot empties
	LogDir   string
	Exe      string // this program, which systemd calls as "EXE unit-begin …" before each start, see Begin
	Files    Files
	Probe    Asker
	Log      *slog.Logger

	// Optional.
	Prefix  string            // of the services' names; empty means slipway-
	OnEvent func(units.Event) // called for each change of a unit's state; must not block and must not call the Host
	LogSize int64             // size at which a log is rotated; 0 means 16 MiB

	health   units.Health  // tests have less time
	logsEach time.Duration // between two looks at the sizes of logs
}

// Host lets systemd run units. It is safe for concurrent use. Only one Host at a time has a prefix.
type Host struct {
	conf    Config
	bus     *bus
	logs    units.Logs
	seen    units.Seen
	ctx     context.Context //nolint:containedctx // the life of the Host's own goroutines, ended by Close
	cancel  context.CancelFunc
	running sync.WaitGroup
	units   units.Set[*unit]
}

var _ reconcile.Host = (*Host)(nil)

// New connects to systemd and takes over every unit that an earlier agent of this boot has left a record of.
func New(c Config) (*Host, error) {
	if c.StateDir == "" || c.LogDir == "" || c.Exe == "" || c.Files == nil || c.Probe == nil || c.Log == nil {
		return nil, errors.New("systemd: StateDir, LogDir, Exe, Files, Probe and Log are required")
	}
	c = withDefaults(c)
	if err := errors.Join(os.MkdirAll(c.StateDir, 0o700), os.MkdirAll(c.LogDir, 0o755), os.MkdirAll(UnitDir, 0o755)); err != nil {
		return nil, err
	}
	h := &Host{conf: c, logs: units.Logs{Dir: c.LogDir}}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.bus = &bus{log: c.Log, changed: h.touch}
	if err := errors.Join(h.bus.open(h.ctx, h.running.Go), h.adopt()); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	h.running.Go(func() { h.logs.Keep(h.ctx, c.logsEach, c.LogSize, h.units.Names, c.Log) })
	return h, nil
}

func withDefaults(c Config) Config {
	c.Prefix = cmp.Or(c.Prefix, render.Prefix)
	if c.OnEvent == nil {
		c.OnEvent = func(units.Event) {}
	}
	c.LogSize = cmp.Or(c.LogSize, 16<<20)
	c.logsEach = cmp.Or(c.logsEach, 10*time.Second)
	if c.health.Period == 0 {
		c.health = units.Health{Period: units.HealthPeriod, Unwell: units.UnwellPeriod, Hung: units.HungAfter}
	}
	c.health.Ask = c.Probe.Ask
	return c
}

// Close stops watching and leaves every unit as it is.
func (h *Host) Close() error {
	h.cancel()
	h.running.Wait()
	return nil
}

// adopt takes over what has a record. Without one a unit is not known, and is looked at when a plan has it.
func (h *Host) adopt() error {
	records, err := filepath.Glob(filepath.Join(h.conf.StateDir, "*.state*"))
	if err != nil {
		return err
	}
	for _, path := range records {
		name, ok := strings.CutSuffix(strings.TrimSuffix(filepath.Base(path), ".prev"), ".state")
		if !ok || h.units.Get(name) != nil { // a file on its way, or the other generation
			continue
		}
		u := h.unitOrNew(name)
		if err := u.recall(); err != nil {
			return fmt.Errorf("adopt unit %s: %w", name, err)
		}
		if err := u.refresh(h.ctx); err != nil {
			return fmt.Errorf("adopt unit %s: %w", name, err)
		}
	}
	return nil
}

// StopAll stops the named units one after the other, then all others. It goes on when one does not stop.
func (h *Host) StopAll(ctx context.Context, order []string) error {
	return h.units.StopAll(ctx, order, (*unit).stop)
}

// Stop stops one unit. One that does not run, or that this machine never had, is no error.
func (h *Host) Stop(ctx context.Context, name string) error {
	return h.units.Stop(ctx, name, (*unit).stop)
}

// touch looks again at what may have changed; no object means all.
func (h *Host) touch(object string) {
	for _, u := range h.units.All() {
		if object == "" || u.object == object {
			select {
			case u.wake <- struct{}{}:
			default: // it is going to look anyway
			}
		}
	}
}

func (h *Host) unitOrNew(name string) *unit {
	return h.units.GetOrNew(name, func() *unit {
		u := newUnit(h, name)
		h.running.Go(u.keep)
		return u
	})
}

func (h *Host) forget(u *unit) {
	h.units.Forget(u.name, u)
	u.cancel()
}

// Observe tells the entry's state, see reconcile.Host.
func (h *Host) Observe(ctx context.Context, e plan.Entry) (plan.State, error) {
	h.seen.See(e)
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
	if u.isUnknown() {
		return plan.State{Existence: plan.Absent, Detail: "it has never been started"}, nil
	}
	inputs, err := h.fingerprints(spec)
	if err != nil {
		return plan.State{}, fmt.Errorf("observe %s: %w", e.Ref, err)
	}
	return u.observe(e, spec, inputs), nil
}

// Do carries out one step, see reconcile.Host.
func (h *Host) Do(ctx context.Context, s plan.Step, e plan.Entry) error {
	h.seen.See(e)
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

// Await waits until the unit is ready. A unit that dies meanwhile is started again, and waiting goes on.
func (h *Host) Await(ctx context.Context, e plan.Entry, waiting func(reason string)) error {
	h.seen.See(e)
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

// checkName refuses what systemd would not take for the name of a service, or what would lead out of a folder.
func checkName(e plan.Entry) error {
	name := e.Item.Key()
	for _, c := range name {
		if c > 0x7e || !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:_.-@", c) {
			return fmt.Errorf("%s: a unit cannot have this name: %q is not allowed in the name of a service", e.Ref, c)
		}
	}
	if name == "" || name[0] == '.' || len(name) > 200 {
		return fmt.Errorf("%s: a unit cannot have this name", e.Ref)
	}
	return nil
}

func (h *Host) fingerprints(spec plan.Unit) ([]units.Input, error) {
	return h.seen.Fingerprints(spec, h.conf.Files.Fingerprint)
}

func (u *unit) isUnknown() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.rec.Unit.Name == "" && u.state.isGone()
}

// remove stops the unit and takes away all that is known of it. systemd forgets what has no file and does not run.
func (u *unit) remove(ctx context.Context) error {
	u.ops.Lock()
	defer u.ops.Unlock()
	if err := u.stopLocked(ctx); err != nil {
		return err
	}
	dir := u.host.conf.StateDir
	err := errors.Join(
		removeIfThere(filepath.Join(UnitDir, u.service)), u.host.bus.forgive(ctx, u.service),
		removeRecord(recordPath(dir, u.name)), removeRecord(begunPath(dir, u.name)),
	)
	if err != nil {
		return fmt.Errorf("remove %s: %w", u.name, err)
	}
	u.host.forget(u)
	return nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Logs is the path of a unit's log; older ones have .1, .2, .3 appended.
func (h *Host) Logs(unit string) string { return h.logs.Path(unit) }

// Status tells of every unit, by name.
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
