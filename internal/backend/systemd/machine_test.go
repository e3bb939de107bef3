// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/bintest"
)

// insideEnv is set for the test binary that runs in the container.
const insideEnv = "SLIPWAY_INSIDE_SYSTEMD"

// TestOnSystemd runs the tests named TestInside… in a container in which systemd is PID 1 and has no units
// except the few that every service depends on. Its network has only a loopback interface.
func TestOnSystemd(t *testing.T) {
	t.Parallel()
	const systemd = "/usr/lib/systemd/systemd"
	if os.Geteuid() != 0 {
		t.Skip("systemd as PID 1 of a container requires root")
	}
	if _, err := os.Stat(systemd); err != nil {
		t.Skip("no " + systemd + " on this machine (install the package systemd)")
	}
	m := newMachine(t, filepath.Join(bintest.Dir(t, "runc"), "runc"), systemd)
	m.awaitSocket(t)
	m.run(t, "systemctl", "is-system-running", "--wait")
	args := []string{"/test/" + filepath.Base(m.self), "-test.run=^TestInside", "-test.v", "-test.timeout=5m", "-test.parallel=4"}
	out, err := m.command(t.Context(), args...).CombinedOutput()
	text := string(out)
	if err != nil || testing.Verbose() {
		t.Log(text)
	}
	if err != nil {
		t.Errorf("tests in the container: %v\n%s", err, m.console(t))
	}
	if !strings.Contains(text, "--- PASS: TestInsideConformance") && !strings.Contains(text, "--- FAIL: TestInsideConformance") {
		t.Errorf("the suite did not run in the container: %s", text)
	}
}

type testMachine struct{ runc, state, dir, name, self string }

func newMachine(t *testing.T, runc, systemd string) *testMachine {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	m := &testMachine{runc: runc, state: filepath.Join(dir, "runc"), dir: dir, name: "sysd-test-" + strconv.Itoa(os.Getpid()), self: self}
	m.makeRoot(t)
	config, err := json.Marshal(m.config(t, systemd))
	if err != nil {
		t.Fatal(err)
	}
	m.write(t, "config.json", string(config))
	console, err := os.Create(filepath.Join(dir, "console"))
	if err != nil {
		t.Fatal(err)
	}
	defer console.Close() // the machine has its own descriptor
	cmd := exec.CommandContext(t.Context(), runc, "--root", m.state, "run", "--detach", "--bundle", dir, m.name)
	cmd.Stdout, cmd.Stderr = console, console
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
		defer cancel()
		if out, err := exec.CommandContext(ctx, runc, "--root", m.state, "delete", "--force", m.name).CombinedOutput(); err != nil {
			t.Errorf("delete machine: %v: %s", err, out)
		}
	})
	if err := cmd.Run(); err != nil {
		t.Fatalf("boot systemd: %v: %s", err, m.console(t))
	}
	return m
}

// makeRoot creates a root directory with only what systemd needs. Programs come from this machine's /usr.
func (m *testMachine) makeRoot(t *testing.T) {
	t.Helper()
	for _, d := range []string{"usr", "proc", "sys", "dev", "run", "tmp", "root", "test", "var/log", "var/lib", "etc/systemd/system"} {
		if err := os.MkdirAll(filepath.Join(m.dir, "rootfs", d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, link := range []string{"bin", "sbin", "lib", "lib64"} {
		if to, err := os.Readlink("/" + link); err == nil {
			if err := os.Symlink(to, filepath.Join(m.dir, "rootfs", link)); err != nil {
				t.Fatal(err)
			}
		}
	}
	m.write(t, "rootfs/etc/machine-id", "")
	m.write(t, "rootfs/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
	m.write(t, "rootfs/etc/group", "root:x:0:\n")
	for _, target := range []string{"default", "sysinit", "basic", "shutdown", "umount", "final"} {
		m.write(t, "rootfs/etc/systemd/system/"+target+".target", "[Unit]\nDescription="+target+"\nDefaultDependencies=no\n")
	}
}

func (m *testMachine) write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(m.dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (m *testMachine) config(t *testing.T, systemd string) map[string]any {
	t.Helper()
	mount := func(destination, kind, source string, options ...string) map[string]any {
		return map[string]any{"destination": destination, "type": kind, "source": source, "options": options}
	}
	var namespaces []map[string]string
	for _, kind := range []string{"pid", "network", "ipc", "uts", "mount", "cgroup"} {
		namespaces = append(namespaces, map[string]string{"type": kind})
	}
	mine := capabilities(t)
	return map[string]any{
		"ociVersion": "1.0.2", "hostname": "test",
		"process": map[string]any{
			"user": map[string]int{"uid": 0, "gid": 0}, "cwd": "/",
			"args": []string{systemd, "--log-target=console", "--show-status=no"},
			"env":  []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "container=runc", "SYSTEMD_UNIT_PATH=/etc/systemd/system:/run/systemd/system"},
			"capabilities": map[string][]string{
				"bounding": mine, "effective": mine, "permitted": mine, "inheritable": mine,
			},
		},
		"root": map[string]any{"path": "rootfs"},
		"mounts": []map[string]any{
			mount("/proc", "proc", "proc"),
			mount("/dev", "tmpfs", "tmpfs", "nosuid", "mode=755"),
			mount("/dev/pts", "devpts", "devpts", "newinstance", "ptmxmode=0666", "mode=0620"),
			mount("/dev/shm", "tmpfs", "shm"),
			mount("/sys", "sysfs", "sysfs", "ro", "nosuid", "noexec", "nodev"),
			mount("/sys/fs/cgroup", "cgroup", "cgroup", "rw", "nosuid", "noexec", "nodev"),
			mount("/run", "tmpfs", "tmpfs", "mode=755"),
			mount("/tmp", "tmpfs", "tmpfs", "mode=1777"),
			mount("/usr", "bind", "/usr", "rbind", "ro"),
			mount("/test", "bind", filepath.Dir(m.self), "rbind", "ro"),
		},
		"linux": map[string]any{
			"namespaces": namespaces, "rootfsPropagation": "shared", "cgroupsPath": "/" + m.name,
			"readonlyPaths": []string{"/proc/sys/fs"}, // systemd would raise the limits of the whole kernel
		},
	}
}

// capabilities returns the capabilities of this process: a container cannot have more.
func capabilities(t *testing.T) (names []string) {
	t.Helper()
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(data), "CapEff:")
	mask, err := strconv.ParseUint(strings.Fields(after)[0], 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Fields(`CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE
		NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT
		SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG
		WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE`)
	for i, name := range all {
		if mask>>i&1 == 1 {
			names = append(names, "CAP_"+name)
		}
	}
	return names
}

// awaitSocket waits until systemd accepts connections.
func (m *testMachine) awaitSocket(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for m.command(ctx, "/usr/bin/test", "-S", "/run/systemd/private").Run() != nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("systemd did not open its socket", m.console(t))
		}
	}
}

func (m *testMachine) command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, m.runc, append([]string{"--root", m.state, "exec", "--env", insideEnv + "=1", m.name}, args...)...)
}

func (m *testMachine) run(t *testing.T, args ...string) {
	t.Helper()
	if out, err := m.command(t.Context(), args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s%s", args, err, out, m.console(t))
	}
}

func (m *testMachine) console(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(m.dir, "console"))
	if err != nil {
		t.Error(err)
	}
	return fmt.Sprintf("\nconsole of the machine:\n%s", data)
}
