// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/reconcile"

	"go.uber.org/goleak"

	"github.com/slipway-project/slipway/internal/backend/files"
	"github.com/slipway-project/slipway/internal/backend/hosttest"
	"github.com/slipway-project/slipway/internal/backend/probe"
)

func TestMain(m *testing.M) {
	hosttest.BehaveIfAsked()
	agentIfAsked()
	if len(os.Args) > 1 && os.Args[1] == "unit-exec" {
		fmt.Fprintln(os.Stderr, "slipway:", Exec(os.Args[2:]))
		os.Exit(127)
	}
	goleak.VerifyTestMain(m)
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, root := range cgroupRoots(t) {
		t.Run(filepath.Base(root), func(t *testing.T) {
			t.Parallel()
			hosttest.Run(t, func(t *testing.T) hosttest.Rig { return newBedIn(t, root).rig(t) })
		})
	}
}

// cgroupRoots are directories to search for hierarchies: all, and if there are both versions, only one of
// version 1 and only that of version 2.
func cgroupRoots(t *testing.T) []string {
	t.Helper()
	roots := []string{"/sys/fs/cgroup"}
	for _, only := range []string{"/sys/fs/cgroup/pids", "/sys/fs/cgroup/unified"} {
		if c, err := findCgroups(only, ""); err == nil && len(c.parents) == 1 {
			roots = append(roots, only)
		}
	}
	return roots
}

// bed is the environment of a Host. It outlives Hosts.
type bed struct {
	dir  string
	conf Config
}

func newBed(t *testing.T) *bed { return newBedIn(t, "/sys/fs/cgroup") }

func newBedIn(t *testing.T, cgroupRoot string) *bed {
	dir, err := os.MkdirTemp("", "sw") //nolint:usetesting // short: socket paths have a limit
	if err != nil {
		t.Fatal(err)
	}
	prober := probe.New()
	store, err := files.New(files.Config{Store: filepath.Join(dir, "store"), Verified: filepath.Join(dir, "run", "verified"), Probe: prober})
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{dir: dir, conf: Config{
		StateDir: filepath.Join(dir, "run"), LogDir: filepath.Join(dir, "log"), Limits: filepath.Join(dir, "limits.conf"), Files: store, Probe: prober,
		Log:          slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
		CgroupRoot:   cgroupRoot,
		CgroupParent: fmt.Sprintf("slipway-test-%d-%s", os.Getpid(), filepath.Base(dir)),
	}}
	t.Cleanup(func() {
		prober.Close()
		b.clean(t)
	})
	return b
}

// clean kills every process in the bed's cgroups and removes the cgroups.
func (b *bed) clean(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
	defer cancel()
	groups, err := findCgroups(b.conf.CgroupRoot, b.conf.CgroupParent)
	if err != nil {
		t.Error(err)
		return
	}
	units, _ := os.ReadDir(groups.parents[0])
	for _, u := range units {
		if !u.IsDir() {
			continue
		}
		for _, pid := range groups.processes(u.Name()) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			_, _ = syscall.Wait4(pid, nil, 0, nil) // fails for processes that are not our children
		}
		if err := groups.kill(ctx, u.Name()); err != nil {
			t.Error(err)
		}
	}
	for left := true; left && ctx.Err() == nil; { // a group can be removed once init has reaped its last process
		for _, u := range units {
			groups.remove(u.Name())
		}
		groups.remove("")
		_, err := os.Stat(groups.parents[0])
		left = err == nil
	}
	_ = os.RemoveAll(b.dir)
}

func (b *bed) host(t *testing.T) *Host {
	t.Helper()
	h, err := New(b.conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() }) // a test may have closed it
	return h
}

func (b *bed) rig(t *testing.T) hosttest.Rig {
	h := b.host(t)
	r := hosttest.RealRig(t, b.dir)
	r.Host = h
	r.Crash = func(unit string) {
		if err := h.units.Get(unit).current().signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	r.Running = func(unit string) int { return len(live(h, unit)) }
	r.Limit = func(settings ...string) {
		r.WriteFile(b.conf.Limits, 0o600, "[Service]\n"+strings.Join(settings, "\n")+"\n")
	}
	r.MainPID = func(unit string) int { return h.units.Get(unit).current().pid }
	r.Restart = func(between func()) reconcile.Host {
		h = handOver(t, b, h, between)
		return h
	}
	r.Record = func(unit string) string { return h.recordPath(unit) }
	return r
}

// live lists the processes that have become the unit's program.
func live(h *Host, unit string) (pids []int) {
	for _, pid := range h.cgroups.processes(unit) {
		if args := strings.Join(nulSeparated(fmt.Sprintf("/proc/%d/cmdline", pid)), " "); !isZombie(pid) && !strings.Contains(args, "unit-exec") {
			pids = append(pids, pid)
		}
	}
	return pids
}
