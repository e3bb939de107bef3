// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/slipway-project/slipway/internal/reconcile"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"go.uber.org/goleak"

	"github.com/slipway-project/slipway/internal/backend/files"
	"github.com/slipway-project/slipway/internal/backend/hosttest"
	"github.com/slipway-project/slipway/internal/backend/probe"
)

func TestMain(m *testing.M) {
	hosttest.BehaveIfAsked()
	if len(os.Args) > 1 && os.Args[1] == "unit-pre-start" {
		if err := PreStart(context.Background(), os.Args[2:], files.Fingerprint); err != nil {
			fmt.Fprintln(os.Stderr, "slipway:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// inside skips tests that need systemd as PID 1; TestOnSystemd runs them in a container.
func inside(t *testing.T) {
	t.Helper()
	if os.Getenv(insideEnv) == "" {
		t.Skip("run by TestOnSystemd in a container whose PID 1 is systemd")
	}
	t.Parallel()
}

func TestInsideConformance(t *testing.T) {
	inside(t)
	hosttest.Run(t, func(t *testing.T) hosttest.Rig { return newBed(t).rig(t) })
}

// bed is the environment of a Host. It outlives Hosts.
type bed struct {
	dir  string
	conf Config
}

// beds counts the beds, each of which has its own service prefix.
var beds atomic.Int64 //nolint:gochecknoglobals // one systemd for all tests of the process

func newBed(t *testing.T) *bed {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	prober := probe.New()
	t.Cleanup(prober.Close)
	store, err := files.New(files.Config{Store: filepath.Join(dir, "store"), Verified: filepath.Join(dir, "run", "verified"), Probe: prober})
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{dir: dir, conf: Config{
		StateDir: filepath.Join(dir, "run"), LogDir: filepath.Join(dir, "log"), Exe: self, Files: store, Probe: prober,
		Log:    slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
		Prefix: fmt.Sprintf("t%d-%d-", os.Getpid(), beds.Add(1)),
	}}
	t.Cleanup(func() { b.clean(t) })
	return b
}

// clean stops every service of the bed, kills remaining processes, and removes the unit files.
func (b *bed) clean(t *testing.T) {
	services, err := filepath.Glob(filepath.Join(unitDir, b.conf.Prefix+"*.service"))
	if err != nil {
		t.Error(err)
	}
	ctx := context.WithoutCancel(t.Context())
	conn, err := sd.NewSystemdConnectionContext(ctx)
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	for _, path := range services {
		name := filepath.Base(path)
		_ = conn.KillUnitWithTarget(ctx, name, sd.All, int32(syscall.SIGKILL)) // fails if there is no process
		done := make(chan string, 1)
		if _, err := conn.StopUnitContext(ctx, name, replace, done); err == nil {
			<-done
		}
		for _, pid := range processes(name) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		_ = os.Remove(path)
	}
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
	r.Crash = func(unit string) { crash(t, h, unit) }
	r.Running = func(unit string) int { return len(processes(b.conf.Prefix + unit + ".service")) }
	r.Limit = func(settings ...string) { b.limit(t, settings) }
	r.MainPID = func(unit string) int { return pid(t, h, unit) }
	r.Restart = func(between func()) reconcile.Host {
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		between()
		h = b.host(t)
		return h
	}
	r.Record = func(unit string) string { return recordPath(b.conf.StateDir, unit) }
	return r
}

// limit writes a drop-in for all services with the bed's prefix.
func (b *bed) limit(t *testing.T, settings []string) {
	t.Helper()
	dir := filepath.Join(unitDir, b.conf.Prefix+".service.d")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.WriteFile(filepath.Join(dir, "limits.conf"), []byte("[Service]\n"+strings.Join(settings, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// crash kills the unit's current main process.
func crash(t *testing.T, h *Host, unit string) {
	t.Helper()
	s, err := h.bus.read(t.Context(), h.units.Get(unit).service)
	if err != nil || s.mainPID == 0 {
		t.Fatalf("%s: no main process: %+v %v", unit, s, err)
	}
	if err := syscall.Kill(s.mainPID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// processes lists the live processes in a service's cgroup, without the pre-start command.
func processes(service string) (pids []int) {
	for _, root := range []string{"/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		data, err := os.ReadFile(filepath.Join(root, "slipway.slice", service, "cgroup.procs"))
		if err != nil {
			continue
		}
		for field := range strings.FieldsSeq(string(data)) {
			pid, err := strconv.Atoi(field)
			args, _ := os.ReadFile("/proc/" + field + "/cmdline")
			if err == nil && len(args) > 0 && !strings.Contains(string(args), "unit-pre-start") {
				pids = append(pids, pid)
			}
		}
		return pids
	}
	return nil
}
