// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/machine/process"
)

// record is the stored state of a machine. It is an optimization: without it, Ensure asks runc and inspects
// the files.
type record struct {
	Spec    Spec       `json:"spec"`
	Process process.ID `json:"process"`
	Since   time.Time  `json:"since"`
}

const recordSchema = 1

// Ensure creates and starts the machine if necessary, and changes nothing if it runs as specified. It can be
// called again after a crash of this process, of runc or of the host at any point: it cleans up leftovers
// below this root's directories and cgroups. The caller holds [Local.Lock] and may ensure several machines of
// a cluster concurrently.
func (l *Local) Ensure(ctx context.Context, s Spec) (Change, error) {
	s, err := s.complete()
	if err != nil {
		return Change{}, err
	}
	dir := l.paths(s.Cluster, s.Name).dir // also serves as the machine's lock
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return Change{}, fmt.Errorf("create cluster directory: %w", err)
	}
	err = os.Mkdir(dir, 0o755)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return Change{}, fmt.Errorf("create machine directory: %w", err)
	}
	created := err == nil
	unlock, err := l.lockMachine(ctx, s.Cluster, s.Name)
	if err != nil {
		return Change{}, err
	}
	defer unlock()
	change, err := l.ensureLocked(ctx, s)
	change.Created = created
	return change, err
}

// ensureLocked is Ensure for a complete spec. The caller holds the machine's lock.
func (l *Local) ensureLocked(ctx context.Context, s Spec) (Change, error) {
	old, err := l.readRecord(s.Cluster, s.Name)
	if err != nil {
		return Change{}, err
	}
	if old.Spec.Name != "" && (old.Spec.Address != s.Address || old.Spec.Subnet != s.Subnet) {
		return Change{}, fmt.Errorf("machine %s has address %s in %s, but the spec has %s in %s: destroy the cluster first",
			s.Name, old.Spec.Address, old.Spec.Subnet, s.Address, s.Subnet)
	}
	if err := l.settleInit(&s, old); err != nil {
		return Change{}, err
	}
	var change Change
	if err := l.createDirs(s); err != nil {
		return change, err
	}
	var work errgroup.Group
	work.Go(func() (err error) {
		change.BinaryReplaced, err = l.ensureBinary(s)
		return err
	})
	now, runs := l.running(ctx, s.Cluster, s.Name, old)
	change.Started = !runs
	switch {
	case !runs:
		err = l.prepare(ctx, s, old)
	case now.Process != old.Process || now.Spec.Binary != s.Binary: // a later start must not use an older executable
		now.Spec.Binary = s.Binary
		err = l.saveRecord(now)
	}
	if err := errors.Join(err, work.Wait()); err != nil || runs {
		return change, err
	}
	return change, l.start(ctx, s)
}

// prepare does everything that must precede a boot.
func (l *Local) prepare(ctx context.Context, s Spec, old record) error {
	if err := l.writeFiles(s, old); err != nil {
		return err
	}
	if !reflect.DeepEqual(old.Spec, s.withoutFiles()) {
		// Save it before the boot, so that the machine is known if this process is killed during the boot.
		if err := l.saveRecord(record{Spec: s}); err != nil {
			return err
		}
	}
	if err := l.clear(ctx, s.Cluster, s.Name); err != nil {
		return err
	}
	if err := emptyRun(l.paths(s.Cluster, s.Name)); err != nil {
		return err
	}
	if err := l.ensureNetwork(s); err != nil {
		return err
	}
	if s.Init == Systemd {
		if err := l.writeUnits(s); err != nil {
			return err
		}
	}
	return l.writeBundle(s)
}

// start boots a prepared machine and records its process.
func (l *Local) start(ctx context.Context, s Spec) error {
	begin := time.Now()
	p, err := l.boot(ctx, s)
	if err != nil {
		return errors.Join(err, l.clear(context.WithoutCancel(ctx), s.Cluster, s.Name))
	}
	l.log.Info("machine started", "cluster", s.Cluster, "machine", s.Name, "address", s.Address, "pid", p.PID, "took", time.Since(begin))
	return l.saveRecord(record{Spec: s, Process: p, Since: time.Now().UTC().Truncate(time.Second)})
}

// clear removes what is left of an earlier run: processes in the machine's cgroups, runc's state, the cgroups.
func (l *Local) clear(ctx context.Context, cluster, name string) error {
	path := l.cgroupOf(cluster, name)
	for {
		killed, err := killCgroup(path)
		if err != nil {
			return err
		}
		if len(killed) == 0 {
			break
		}
		for _, p := range killed {
			if ended, err := p.Wait(ctx, killLimit); err != nil || !ended {
				return errors.Join(fmt.Errorf("clean up machine %s: process %d does not exit", name, p.PID), err)
			}
		}
	}
	if err := l.runcForget(ctx, cluster, name); err != nil {
		return err
	}
	return removeCgroup(path)
}

// running reports whether the machine's PID 1 runs and has reported ready once, and returns the record with
// that process. A machine whose PID 1 has received SIGKILL is not running, even if its processes need a while
// to exit.
func (l *Local) running(ctx context.Context, cluster, name string, r record) (record, bool) {
	if r.Process.Alive() && !r.Process.Ending() && l.runcKnows(cluster, name) { // without runc's state, exec is impossible
		return r, true
	}
	p, ok := l.runcRunning(ctx, cluster, name)
	since, isReady := readySince(l.paths(cluster, name))
	if !ok || !isReady || p.Ending() {
		return r, false
	}
	if r.Spec.Name == "" {
		return r, false // its spec is unknown: start it again rather than guess
	}
	r.Process, r.Since = p, since
	return r, true
}

// readRecord returns the zero record if there is none.
func (l *Local) readRecord(cluster, name string) (record, error) {
	var r record
	err := durable.Load(l.paths(cluster, name).state(), recordSchema, &r)
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, nil
	}
	if err != nil {
		return r, fmt.Errorf("read state of machine %s: %w (remove the file and its .prev and try again: the machine restarts and keeps its data)", name, err)
	}
	return r, nil
}

// saveRecord saves r without the contents of s.Files, which may be secret.
func (l *Local) saveRecord(r record) error {
	r.Spec = r.Spec.withoutFiles()
	return durable.Save(l.paths(r.Spec.Cluster, r.Spec.Name).state(), recordSchema, r)
}

// List returns the cluster's machines, sorted by name. For a cluster that does not exist, the list is empty.
func (l *Local) List(ctx context.Context, cluster string) ([]Status, error) {
	if err := checkNames(cluster); err != nil {
		return nil, err
	}
	names, err := l.machineNames(cluster)
	if err != nil {
		return nil, err
	}
	p, err := l.readPartition(cluster)
	if err != nil {
		return nil, err
	}
	var list []Status
	for _, name := range names {
		r, err := l.readRecord(cluster, name)
		if err != nil {
			return nil, err
		}
		st := Status{Name: name, Index: r.Spec.Index, Address: r.Spec.Address, Cut: p.isolates(name), CutFrom: p.separatedFrom(name)}
		if st.Init, err = l.initOf(cluster, name, r); err != nil {
			return nil, err
		}
		if r, ok := l.running(ctx, cluster, name, r); ok {
			st.Running, st.PID, st.Since = true, r.Process.PID, r.Since
		}
		list = append(list, st)
	}
	return list, nil
}

// Clusters lists the clusters that have a directory under this root.
func (l *Local) Clusters() ([]string, error) {
	entries, err := os.ReadDir(l.clusters())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list clusters: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && nameRule.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// InitKind selects PID 1 of a machine. It is chosen at creation and cannot change.
type InitKind string

// The init kinds.
const (
	OwnInit InitKind = "slipway" // [Init]: reaps processes and restarts the agent
	Systemd InitKind = "systemd" // the host's systemd, with little more enabled than the agent: see [BecomeSystemd]
)

// InitKinds lists all kinds, the default first.
func InitKinds() []InitKind { return []InitKind{OwnInit, Systemd} }

// ErrOtherInit reports that a machine exists and has another PID 1 than the spec asks for.
var ErrOtherInit = errors.New("the init of a machine cannot change")

// stopSignal is the signal that makes PID 1 shut the machine down cleanly.
func (k InitKind) stopSignal() unix.Signal {
	if k == Systemd {
		return unix.Signal(37) // SIGRTMIN+3: halt.target
	}
	return unix.SIGTERM
}

// settleInit sets s.Init to the kind the machine already has, or to the default for a new machine.
func (l *Local) settleInit(s *Spec, old record) error {
	have, err := l.initOf(s.Cluster, s.Name, old)
	if err != nil {
		return err
	}
	switch {
	case s.Init == "" && have == "":
		s.Init = OwnInit
	case s.Init == "" || s.Init == have:
		s.Init = have
	case have != "":
		return fmt.Errorf("machine %s has init %s, but the spec has %s: %w; destroy the cluster first, or omit the init", s.Name, have, s.Init, ErrOtherInit)
	}
	if s.Init == Systemd {
		_, err := findSystemd("/")
		return err
	}
	return nil
}

// initOf is the kind of an existing machine, empty for a new one. If the record is lost, the machine's files
// tell.
func (l *Local) initOf(cluster, name string, r record) (InitKind, error) {
	if r.Spec.Init != "" {
		return r.Spec.Init, nil
	}
	if r.Spec.Name != "" {
		return OwnInit, nil // created before Init was recorded
	}
	f := l.paths(cluster, name)
	_, err := os.Lstat(filepath.Join(f.data(systemdData), "system", agentUnit))
	if err == nil {
		return Systemd, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("detect init of machine %s: %w", name, err)
	}
	_, err = os.Lstat(f.console()) // created just before the first boot
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return OwnInit, err
}

const (
	stopLimit = agentStopLimit + 10*time.Second // the agent's limit, and some time for PID 1 itself
	killLimit = 20 * time.Second                // a killed process exits at once unless it is in a blocking system call
)

// ErrNotRunning reports that a machine exists and is not running.
var ErrNotRunning = errors.New("machine is not running")

// Start boots a machine that Ensure has created, with the same spec. It does nothing if the machine runs. It
// does not need [Local.Lock]: if the machine is destroyed in the meantime, the error is an fs.ErrNotExist.
func (l *Local) Start(ctx context.Context, cluster, name string) (Change, error) {
	if _, err := l.find(cluster, name); err != nil {
		return Change{}, err
	}
	unlock, err := l.lockMachine(ctx, cluster, name)
	if err != nil {
		return Change{}, err
	}
	defer unlock()
	r, err := l.find(cluster, name)
	if err != nil {
		return Change{}, err
	}
	s, err := r.Spec.complete()
	if err != nil {
		return Change{}, err
	}
	return l.ensureLocked(ctx, s)
}

// Stop shuts the machine down: the agent stops its units in order, then all other processes exit. Processes
// that exceed the time limit are killed. Stopping a stopped machine is not an error.
func (l *Local) Stop(ctx context.Context, cluster, name string) error {
	return l.halt(ctx, cluster, name, InitKind.stopSignal)
}

// PowerCut kills every process of the machine at once, like a power failure.
func (l *Local) PowerCut(ctx context.Context, cluster, name string) error {
	return l.halt(ctx, cluster, name, func(InitKind) unix.Signal { return unix.SIGKILL })
}

// RestartAgent makes PID 1 kill the agent and start it again. The processes that the agent supervises keep
// running.
func (l *Local) RestartAgent(ctx context.Context, cluster, name string) error {
	p, err := l.pid1(ctx, cluster, name)
	if err != nil {
		return err
	}
	kind, err := l.kind(cluster, name)
	if err != nil {
		return err
	}
	if kind != Systemd {
		return p.Signal(unix.SIGUSR1)
	}
	var output bytes.Buffer
	code, err := l.Exec(ctx, cluster, name, Command{Args: []string{"systemctl", "restart", "--no-block", agentUnit}, Stdout: &output, Stderr: &output})
	if err == nil && code != 0 {
		err = fmt.Errorf("systemctl restart %s in machine %s: exit %d: %s", agentUnit, name, code, bytes.TrimSpace(output.Bytes()))
	}
	return err
}

// kind is the init of an existing machine.
func (l *Local) kind(cluster, name string) (InitKind, error) {
	r, err := l.find(cluster, name)
	if err != nil {
		return "", err
	}
	return l.initOf(cluster, name, r)
}

// AwaitEnd returns nil once the machine is not running, and the context's error if ctx ends first.
func (l *Local) AwaitEnd(ctx context.Context, cluster, name string) error {
	for {
		p, err := l.pid1(ctx, cluster, name)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, ErrNotRunning) {
			return nil
		}
		if err != nil {
			return err
		}
		if ended, err := p.Wait(ctx, time.Hour); ended || err != nil {
			return err
		}
	}
}

// halt signals PID 1 and waits for its exit. It then kills what is left in the machine's cgroups.
func (l *Local) halt(ctx context.Context, cluster, name string, signal func(InitKind) unix.Signal) error {
	kind, err := l.kind(cluster, name)
	if err != nil {
		return err
	}
	unlock, err := l.lockMachine(ctx, cluster, name)
	if err != nil {
		return err
	}
	defer unlock()
	p, err := l.pid1(ctx, cluster, name)
	if err != nil && !errors.Is(err, ErrNotRunning) {
		return err
	}
	if err == nil {
		if err := p.Signal(signal(kind)); err != nil {
			return err
		}
		ended, err := p.Wait(ctx, stopLimit)
		if err != nil {
			return fmt.Errorf("stop machine %s: %w", name, err)
		}
		if !ended {
			l.log.Warn("machine did not stop in time, killing it", "machine", name, "limit", stopLimit)
		}
	}
	return l.clear(ctx, cluster, name)
}

// pid1 is the machine's PID 1 as the host sees it. The error is ErrNotRunning if there is none.
func (l *Local) pid1(ctx context.Context, cluster, name string) (process.ID, error) {
	r, err := l.find(cluster, name)
	if err != nil {
		return process.ID{}, err
	}
	if r.Process.Alive() {
		return r.Process, nil
	}
	if p, ok := l.runcRunning(ctx, cluster, name); ok {
		return p, nil
	}
	return process.ID{}, fmt.Errorf("%s: %w", name, ErrNotRunning)
}

// find reads the record of an existing machine. The error is an fs.ErrNotExist if there is no such machine.
func (l *Local) find(cluster, name string) (record, error) {
	if err := checkNames(cluster, name); err != nil {
		return record{}, err
	}
	r, err := l.readRecord(cluster, name)
	if err == nil && r.Spec.Name == "" {
		err = fmt.Errorf("machine %s of cluster %s: %w", name, cluster, fs.ErrNotExist)
	}
	return r, err
}

// Destroy removes everything that was created for the cluster: processes, runc's state, cgroups, namespaces,
// mounts, files. It keeps the component store, never follows a symlink, and changes nothing outside this
// root's directories and cgroups. After an error it can be called again. The caller holds [Local.Lock].
func (l *Local) Destroy(ctx context.Context, cluster string) error {
	if err := checkNames(cluster); err != nil {
		return err
	}
	dir := l.clusterDir(cluster)
	info, err := os.Lstat(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("inspect cluster directory: %w", err)
	}
	if err == nil && !info.IsDir() {
		return fmt.Errorf("destroy %s: %s is not a directory, so slipway did not create it: remove it by hand", cluster, dir)
	}
	names, err := l.machineNames(cluster)
	if err != nil {
		return err
	}
	for _, name := range names {
		unlock, err := l.lockMachine(ctx, cluster, name)
		if err != nil {
			return err
		}
		defer unlock()
	}
	for _, name := range names { // signal all of them first, so that they exit concurrently
		if p, err := l.pid1(ctx, cluster, name); err == nil {
			if err := p.Signal(unix.SIGKILL); err != nil {
				return err
			}
		}
	}
	for _, name := range names {
		if err := l.clear(ctx, cluster, name); err != nil {
			return err
		}
	}
	if err := l.clear(ctx, cluster, ""); err != nil { // includes machines whose directory is gone
		return err
	}
	if err := l.removeEmptyParents(cluster); err != nil {
		return err
	}
	if err := unmountBelow(dir); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove cluster directory: %w", err)
	}
	_ = os.Remove(filepath.Dir(dir)) // fails while other clusters exist
	if err := durable.SyncDir(l.root); err != nil {
		return err
	}
	l.log.Info("cluster destroyed", "cluster", cluster, "machines", len(names))
	return nil
}

// Remove removes one machine and its data and leaves the other machines of the cluster alone. After an error
// it can be called again. The caller holds [Local.Lock].
func (l *Local) Remove(ctx context.Context, cluster, name string) error {
	if err := checkNames(cluster, name); err != nil {
		return err
	}
	unlock, err := l.lockMachine(ctx, cluster, name)
	if err != nil {
		return err
	}
	defer unlock()
	if p, err := l.pid1(ctx, cluster, name); err == nil {
		if err := p.Signal(unix.SIGKILL); err != nil {
			return err
		}
	}
	if err := l.clear(ctx, cluster, name); err != nil {
		return err
	}
	if err := l.changePartition(cluster, func(p *partition) { p.heal(name) }, nil); err != nil {
		return err
	}
	dir := l.paths(cluster, name).dir
	if err := unmountBelow(dir); err != nil {
		return err
	}
	// Rename first: a partly removed directory would look like a stopped machine.
	aside := filepath.Join(l.clusterDir(cluster), removedPrefix+name)
	if err := errors.Join(os.RemoveAll(aside), os.Rename(dir, aside), durable.SyncDir(l.clusterDir(cluster)), os.RemoveAll(aside)); err != nil {
		return fmt.Errorf("remove machine directory: %w", err)
	}
	l.log.Info("machine removed", "cluster", cluster, "machine", name)
	return nil
}

// removedPrefix starts with a dot, so that machineNames skips such directories.
const removedPrefix = ".removed-"
