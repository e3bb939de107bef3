// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/machine/process"
)

// record is what Ensure remembers of a machine. It only saves questions: without it, runc is asked and the rest is looked up.
type record struct {
	Spec    Spec       `json:"spec"`
	Process process.ID `json:"process"`
	Since   time.Time  `json:"since"`
}

const recordSchema = 1

// Ensure makes the machine exist and run, and changes nothing when it does. It may be called again after a crash between
// any two of its lines, of runc, or of the host: leftovers are repaired when they are below this root's folders or cgroups.
// The caller holds [Local.Lock], and may ensure several machines of the cluster at once.
func (l *Local) Ensure(ctx context.Context, s Spec) (Change, error) {
	s, err := s.complete()
	if err != nil {
		return Change{}, err
	}
	created, err := l.makeFolder(s)
	if err != nil {
		return Change{}, err
	}
	unlock, err := l.lockMachine(ctx, s.Cluster, s.Name)
	if err != nil {
		return Change{}, err
	}
	defer unlock()
	change, err := l.ensureLocked(ctx, s)
	change.Created = created
	return change, err
}

func (l *Local) ensureLocked(ctx context.Context, s Spec) (Change, error) {
	old, err := l.readRecord(s.Cluster, s.Name)
	if err != nil {
		return Change{}, err
	}
	if old.Spec.Name != "" && (old.Spec.Address != s.Address || old.Spec.Subnet != s.Subnet) {
		return Change{}, fmt.Errorf("machine %s has address %s in %s, wanted is %s in %s: destroy the cluster first",
			s.Name, old.Spec.Address, old.Spec.Subnet, s.Address, s.Subnet)
	}
	if err := l.settleInit(&s, old); err != nil {
		return Change{}, err
	}
	var change Change
	if err := l.makeFolders(s); err != nil {
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
	case now.Process != old.Process || now.Spec.Binary != s.Binary: // a later start must not bring an older program back
		now.Spec.Binary = s.Binary
		err = l.saveRecord(now)
	}
	if err := errors.Join(err, work.Wait()); err != nil || runs {
		return change, err
	}
	return change, l.start(ctx, s)
}

// prepare makes everything ready for a boot.
func (l *Local) prepare(ctx context.Context, s Spec, old record) error {
	if err := l.writeFiles(s, old); err != nil {
		return err
	}
	if !reflect.DeepEqual(old.Spec, s.withoutFiles()) {
		// Before the boot, so that a machine whose maker was killed in between is known afterwards.
		if err := l.saveRecord(record{Spec: s}); err != nil {
			return err
		}
	}
	if err := l.clear(ctx, s.Cluster, s.Name); err != nil {
		return err
	}
	if err := emptyRun(l.folders(s.Cluster, s.Name)); err != nil {
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

func (l *Local) start(ctx context.Context, s Spec) error {
	begin := time.Now()
	p, err := l.boot(ctx, s)
	if err != nil {
		return errors.Join(err, l.clear(context.WithoutCancel(ctx), s.Cluster, s.Name))
	}
	l.log.Info("machine started", "cluster", s.Cluster, "machine", s.Name, "address", s.Address, "pid", p.PID, "took", time.Since(begin))
	return l.saveRecord(record{Spec: s, Process: p, Since: time.Now().UTC().Truncate(time.Second)})
}

// clear ends what is left of an earlier run: processes in the machine's cgroups, runc's record, the cgroups themselves.
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
				return errors.Join(fmt.Errorf("clear machine %s: process %d does not end", name, p.PID), err)
			}
		}
	}
	if err := l.runcForget(ctx, cluster, name); err != nil {
		return err
	}
	return removeCgroup(path)
}

// running reports whether the machine's PID 1 runs and has told once that it stands, and returns the record with that process. A
// machine whose plug has just been pulled does not run, though its processes may take a while to end.
func (l *Local) running(ctx context.Context, cluster, name string, r record) (record, bool) {
	if r.Process.Alive() && !r.Process.Ending() && l.runcKnows(cluster, name) { // without runc's record nothing can be executed inside
		return r, true
	}
	p, ok := l.runcRunning(ctx, cluster, name)
	since, isReady := readySince(l.folders(cluster, name))
	if !ok || !isReady || p.Ending() {
		return r, false
	}
	if r.Spec.Name == "" {
		return r, false // nobody knows what it was given: start it again rather than guess
	}
	r.Process, r.Since = p, since
	return r, true
}

func (l *Local) readRecord(cluster, name string) (record, error) {
	var r record
	err := durable.Load(l.folders(cluster, name).state(), recordSchema, &r)
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, nil
	}
	if err != nil {
		return r, fmt.Errorf("read machine %s: %w; remove that file and its .prev and try again: the machine is restarted and keeps its data", name, err)
	}
	return r, nil
}

func (l *Local) saveRecord(r record) error {
	r.Spec = r.Spec.withoutFiles()
	return durable.Save(l.folders(r.Spec.Cluster, r.Spec.Name).state(), recordSchema, r)
}

// List tells how the cluster's machines are, by name. A cluster that does not exist has none.
func (l *Local) List(ctx context.Context, cluster string) ([]Status, error) {
	if err := checkNames(cluster); err != nil {
		return nil, err
	}
	names, err := l.machineNames(cluster)
	if err != nil {
		return nil, err
	}
	cuts, err := l.readCuts(cluster)
	if err != nil {
		return nil, err
	}
	var list []Status
	for _, name := range names {
		r, err := l.readRecord(cluster, name)
		if err != nil {
			return nil, err
		}
		st := Status{Name: name, Index: r.Spec.Index, Address: r.Spec.Address, Cut: cuts.of(name), CutFrom: cuts.from(name)}
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

// Clusters lists the clusters that have a folder under this root.
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
