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
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/machine/process"
)

const (
	stopLimit = agentStopLimit + 10*time.Second // PID 1 gives the agent its limit and then needs a moment itself
	killLimit = 20 * time.Second                // only a process inside a hanging system call needs more than a moment
)

// ErrNotRunning says that a machine exists and does not run.
var ErrNotRunning = errors.New("machine does not run")

// Start boots a machine that Ensure made before, with the same spec. A running one is left alone. It needs no [Local.Lock]: a
// machine that is destroyed meanwhile is an fs.ErrNotExist.
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

// Stop shuts the machine down: the agent stops its units in order, then everything else ends. What hangs is killed in the
// end. Stopping a stopped machine is no error.
func (l *Local) Stop(ctx context.Context, cluster, name string) error {
	return l.halt(ctx, cluster, name, InitKind.stopSignal)
}

// PowerCut ends every process of the machine at once, as when its plug is pulled.
func (l *Local) PowerCut(ctx context.Context, cluster, name string) error {
	return l.halt(ctx, cluster, name, func(InitKind) unix.Signal { return unix.SIGKILL })
}

// RestartAgent makes PID 1 kill and start the agent. What the agent supervises keeps running.
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
	var said bytes.Buffer
	code, err := l.Exec(ctx, cluster, name, Command{Args: []string{"systemctl", "restart", "--no-block", agentUnit}, Stdout: &said, Stderr: &said})
	if err == nil && code != 0 {
		err = fmt.Errorf("systemctl restart %s in machine %s: exit %d: %s", agentUnit, name, code, bytes.TrimSpace(said.Bytes()))
	}
	return err
}

// kind is the machine's init.
func (l *Local) kind(cluster, name string) (InitKind, error) {
	r, err := l.find(cluster, name)
	if err != nil {
		return "", err
	}
	return l.initOf(cluster, name, r)
}

// AwaitEnd returns nil as soon as the machine does not run, and the context's error if that ends first.
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

// pid1 is the machine's first process.
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

// Destroy removes everything that was made for the cluster: processes, runc's records, cgroups, namespaces, mounts, files.
// It keeps the component store, never follows a symlink, and touches nothing outside this root's folders and cgroups. When
// it fails, call it again. The caller holds [Local.Lock].
func (l *Local) Destroy(ctx context.Context, cluster string) error {
	if err := checkNames(cluster); err != nil {
		return err
	}
	dir := l.clusterDir(cluster)
	info, err := os.Lstat(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look at cluster folder: %w", err)
	}
	if err == nil && !info.IsDir() {
		return fmt.Errorf("destroy %s: %s is no folder, so slipway did not make it; remove it yourself", cluster, dir)
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
	for _, name := range names { // all at once, so that none waits for another one's end
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
	if err := l.clear(ctx, cluster, ""); err != nil { // also machines whose folder is gone
		return err
	}
	if err := l.removeParents(cluster); err != nil {
		return err
	}
	if err := unmountBelow(dir); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove cluster folder: %w", err)
	}
	_ = os.Remove(filepath.Dir(dir)) // refused while other clusters are there
	if err := durable.SyncDir(l.root); err != nil {
		return err
	}
	l.log.Info("cluster destroyed", "cluster", cluster, "machines", len(names))
	return nil
}
