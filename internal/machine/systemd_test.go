// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func needSystemd(t *testing.T) {
	t.Helper()
	if _, err := findSystemd("/"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

func TestSystemdMachineLife(t *testing.T) {
	l := newLocal(t)
	needSystemd(t)
	before := hostState(t, l)
	s := Spec{Cluster: "sysd", Name: "sysd-1", Init: Systemd, Env: []string{`ODD=a "b" 100%`}}
	begin := time.Now()
	ensure(t, l, s)
	agent := await(t, l, s, "agent.pid", "")
	t.Logf("time from Ensure to the running agent: %v", time.Since(begin))
	s.Init = ""
	if got := ensure(t, l, s); !got.None() || status(t, l, s).Init != Systemd {
		t.Errorf("second Ensure, without an init: got %+v, %+v", got, status(t, l, s))
	}
	s.Init = OwnInit
	if _, err := l.Ensure(t.Context(), s); !errors.Is(err, ErrOtherInit) {
		t.Errorf("another init for an existing machine: got %v, want ErrOtherInit", err)
	}
	s.Init = ""
	t.Run("inside", func(t *testing.T) { checkInsideSystemd(t, l, s) })
	t.Run("agent dies", func(t *testing.T) {
		component := await(t, l, s, "component.pid", "")
		run(t, l, s, "kill", "-9", agent)
		agent = await(t, l, s, "agent.pid", agent)
		must(t, l.RestartAgent(t.Context(), s.Cluster, s.Name))
		agent = await(t, l, s, "agent.pid", agent)
		run(t, l, s, "kill", "-0", component)
	})
	t.Run("power cut and lost record", func(t *testing.T) {
		must(t, l.PowerCut(t.Context(), s.Cluster, s.Name))
		f := l.paths(s.Cluster, s.Name)
		must(t, os.Remove(f.state()), os.Remove(f.state()+".prev"))
		ensure(t, l, s)
		await(t, l, s, "agent.pid", "")
		if got := run(t, l, s, "ps", "-o", "comm=", "-p", "1"); got != "systemd\n" {
			t.Errorf("PID 1: got %q, want systemd", got)
		}
	})
	t.Run("stop in order", func(t *testing.T) {
		begin := time.Now()
		must(t, l.Stop(t.Context(), s.Cluster, s.Name))
		if took := time.Since(begin); took > stopLimit/2 {
			t.Errorf("stop: got %v, want at most half the limit", took)
		}
	})
	must(t, l.Destroy(t.Context(), s.Cluster))
	if diff := hostDiff(before, hostState(t, l)); diff != "" {
		t.Errorf("host changed (-want +got):\n%s", diff)
	}
}

func checkInsideSystemd(t *testing.T, l *Local, s Spec) {
	for name, tt := range map[string]struct{ script, want string }{
		"state":             {"systemctl is-system-running --wait", "running\n"},
		"services":          {"systemctl list-units --type=service --plain --no-legend | awk '{print $1, $3, $4}'", "slipway-agent.service active running\nsystemd-journald.service active running\n"},
		"sockets":           {"systemctl list-units --type=socket,timer,path,automount --plain --no-legend | awk '{print $1}'", "dbus.socket\nsystemd-journald.socket\n"},
		"failed":            {"systemctl --failed --plain --no-legend", ""},
		"host name":         {"uname -n", s.Name + "\n"},
		"environment":       {"tr '\\0' '\\n' < /proc/$(cat /run/slipway/agent.pid)/environ | grep -E '^(PATH|KUBECONFIG|ODD)=' | LC_ALL=C sort", "KUBECONFIG=/etc/kubernetes/admin.conf\nODD=a \"b\" 100%\nPATH=" + PathInside + "\n"},
		"agent log":         {"cat /var/log/slipway/agent.log", "agent says hello\n"},
		"sysctl reads":      {"cat /proc/sys/vm/overcommit_memory /proc/sys/kernel/panic", "1\n10\n"},
		"kernel-wide":       {"for f in fs/file-max fs/nr_open vm/overcommit_memory; do grep -c \" /proc/sys/$f \" /proc/self/mountinfo; done", "1\n1\n1\n"},
		"mounts are shared": {"grep -c ' / / .* shared:' /proc/self/mountinfo", "1\n"},
		"no watchdog":       {"systemctl show -p RuntimeWatchdogUSec -p RebootWatchdogUSec | sort", "RebootWatchdogUSec=0\nRuntimeWatchdogUSec=0\n"},
		"devices":           {"systemctl start systemd-udevd.service 2>&1 | grep -o masked", "masked\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, run(t, l, s, "sh", "-c", tt.script)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDistributionWants(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, path := range []string{
		"lib/systemd/system/sysinit.target.wants/systemd-journald.service", "lib/systemd/system/sysinit.target.wants/systemd-sysctl.service",
		"usr/lib/systemd/system/sysinit.target.wants/systemd-sysctl.service", "usr/lib/systemd/system/multi-user.target.requires/theirs.service",
		"usr/lib/systemd/system/foo.service.d/x.conf", "usr/lib/systemd/system/basic.target",
	} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755), os.WriteFile(filepath.Join(root, path), nil, 0o600))
	}
	want := []string{"multi-user.target.requires/theirs.service", "sysinit.target.wants/systemd-sysctl.service"}
	if diff := cmp.Diff(want, distributionWants(root)); diff != "" {
		t.Error(diff)
	}
}

func TestInitKinds(t *testing.T) {
	t.Parallel()
	if _, err := (Spec{Cluster: "c", Name: "m", Init: "sysv"}).complete(); err == nil || !strings.Contains(err.Error(), "slipway systemd") {
		t.Errorf("unknown init: got %v", err)
	}
	if _, err := findSystemd(t.TempDir()); err == nil || !strings.Contains(err.Error(), "install the systemd package") {
		t.Errorf("no systemd: got %v", err)
	}
	for _, k := range InitKinds() {
		if _, err := (Spec{Cluster: "c", Name: "m", Init: k}).complete(); err != nil {
			t.Error(err)
		}
	}
	units := hostOnlyUnits()
	slices.Sort(units)
	if n := len(units); n != len(slices.Compact(units)) {
		t.Error("hostOnlyUnits contains a duplicate")
	}
}
