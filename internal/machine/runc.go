// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/machine/process"
)

// runcCommand runs runc with the cluster's own state directory.
func (l *Local) runcCommand(ctx context.Context, cluster string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, l.runc, append([]string{"--root", l.runcRoot(cluster)}, args...)...)
	cmd.Dir = "/"
	return cmd
}

// runcKnows reports whether runc has state for the machine, which may be stale.
func (l *Local) runcKnows(cluster, name string) bool {
	_, err := os.Lstat(filepath.Join(l.runcRoot(cluster), name))
	return err == nil
}

// runcRunning asks runc for the machine's PID 1; ok is false if it is not running.
func (l *Local) runcRunning(ctx context.Context, cluster, name string) (p process.ID, ok bool) {
	if !l.runcKnows(cluster, name) {
		return process.ID{}, false
	}
	out, err := l.runcCommand(ctx, cluster, "state", name).Output()
	var st struct {
		Status string `json:"status"`
		PID    int    `json:"pid"`
	}
	if err != nil || json.Unmarshal(out, &st) != nil || st.Status != "running" {
		return process.ID{}, false
	}
	p, err = process.Identify(st.PID)
	return p, err == nil
}

// runcForget removes runc's state of a machine whose processes are gone, including state that runc itself
// cannot read.
func (l *Local) runcForget(ctx context.Context, cluster, name string) error {
	if !l.runcKnows(cluster, name) {
		return nil
	}
	out, err := l.runcCommand(ctx, cluster, "delete", "--force", name).CombinedOutput()
	if err == nil && !l.runcKnows(cluster, name) {
		return nil
	}
	if rm := os.RemoveAll(filepath.Join(l.runcRoot(cluster), name)); rm != nil {
		return fmt.Errorf("remove runc state of %s: %w", name, errors.Join(rm, err, errors.New(strings.TrimSpace(string(out)))))
	}
	return nil
}

// bootLimit is far above the usual 0.1 s.
const bootLimit = 30 * time.Second

// boot starts the machine's PID 1 and returns when it reports ready.
func (l *Local) boot(ctx context.Context, s Spec) (process.ID, error) {
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	f := l.paths(s.Cluster, s.Name)
	console, err := os.OpenFile(f.console(), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return process.ID{}, fmt.Errorf("open machine console: %w", err)
	}
	defer console.Close()
	stable, err := durable.ShareDirBriefly(l.clusters()) // see removeEmptyParents
	if err != nil {
		return process.ID{}, err
	}
	defer stable()
	ready, tell, err := os.Pipe()
	if err != nil {
		return process.ID{}, err
	}
	defer ready.Close()
	err = inPrivateMounts(func() error {
		if err := mountOverlay(f); err != nil {
			return err
		}
		cmd := l.runcCommand(ctx, s.Cluster, "run", "--detach", "--preserve-fds", "1", "--pid-file", f.pidFile(), "--bundle", f.bundle(), s.Name)
		cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = console, console, []*os.File{tell}
		// If this process is killed, runc must not continue while the next Ensure runs.
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		return cmd.Run()
	})
	tell.Close()
	if err != nil {
		return process.ID{}, fmt.Errorf("start machine %s: %w%s", s.Name, err, tail(f.console()))
	}
	stop := context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Now()) })
	defer stop()
	message, err := io.ReadAll(ready)
	if err != nil || !bytes.Equal(message, []byte(readyMessage)) {
		return process.ID{}, fmt.Errorf("start machine %s: PID 1 exited or hung before it was ready%s", s.Name, tail(f.console()))
	}
	p, err := readPID(f.pidFile())
	if err != nil {
		return process.ID{}, fmt.Errorf("start machine %s: PID 1 exited at once: %w%s", s.Name, err, tail(f.console()))
	}
	return p, nil
}

// readPID identifies the process whose pid runc has written to a file.
func readPID(path string) (process.ID, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return process.ID{}, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return process.ID{}, err
	}
	return process.Identify(pid)
}

// tail returns the last 2000 bytes of a log, indented, for an error message.
func tail(path string) string {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || len(bytes.TrimSpace(data)) == 0 {
		return ""
	}
	if len(data) > 2000 {
		data = data[len(data)-2000:]
	}
	return "\n  " + strings.ReplaceAll(string(bytes.TrimSpace(data)), "\n", "\n  ")
}

// PathInside is the PATH of processes in a machine.
const PathInside = BinDir + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// writeBundle writes runc's bundle: config.json and nothing else. Each boot writes it again, so it is not
// synced.
func (l *Local) writeBundle(s Spec) error {
	caps, err := ownCapabilities()
	if err != nil {
		return err
	}
	limit, err := fileLimit()
	if err != nil {
		return err
	}
	f := l.paths(s.Cluster, s.Name)
	// Remove all of it: runc does not write its pid file if a killed runc left a partial one.
	if err := errors.Join(os.RemoveAll(f.bundle()), os.Mkdir(f.bundle(), 0o700)); err != nil {
		return fmt.Errorf("create machine bundle: %w", err)
	}
	pid1 := []string{BinDir + "/slipway", "machine-init"}
	if s.Init == Systemd {
		pid1 = append(pid1, "--systemd")
	} else {
		pid1 = append(append(pid1, "--"), s.Agent...)
	}
	spec := specs.Spec{
		Version:  specs.Version,
		Hostname: s.Name,
		Root:     &specs.Root{Path: f.rootfs()},
		Mounts:   append(l.mounts(s, f), s.initMounts(f)...),
		Process: &specs.Process{
			Args:         pid1,
			Env:          append(insideEnv(), s.Env...),
			Cwd:          "/",
			Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
			Rlimits:      []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: limit, Soft: limit}},
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.CgroupNamespace},
				{Type: specs.NetworkNamespace, Path: f.netns()},
			},
			CgroupsPath:       l.cgroupOf(s.Cluster, s.Name),
			RootfsPropagation: "shared",
			Resources:         &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}},
		},
	}
	data, err := json.MarshalIndent(spec, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(f.bundle(), "config.json"), data, 0o600); err != nil {
		return fmt.Errorf("write machine bundle: %w", err)
	}
	return nil
}

// insideEnv is the environment of PID 1 and of the agent.
func insideEnv() []string {
	return []string{"PATH=" + PathInside, "HOME=/root", "TERM=dumb", "KUBECONFIG=/etc/kubernetes/admin.conf"}
}

// initMounts are the mounts that only systemd needs.
func (s Spec) initMounts(f paths) []specs.Mount {
	if s.Init != Systemd {
		return nil
	}
	m := []specs.Mount{{Source: f.data(systemdData), Destination: systemdEtc, Type: "bind", Options: []string{"bind", "rw"}}}
	if _, err := os.Stat("/dev/console"); err == nil { // otherwise systemd would use the host's console
		m = append(m, specs.Mount{Source: os.DevNull, Destination: "/dev/console", Type: "bind", Options: []string{"bind", "rw"}})
	}
	return m
}

// cgroupOf is the path of a cluster's cgroup, or of one below it, relative to the root of a hierarchy.
func (l *Local) cgroupOf(cluster string, more ...string) string {
	return filepath.Join(append([]string{l.cgroup, cluster}, more...)...)
}

// mounts are the mounts of every machine: kernel filesystems, the machine's own directories, the component
// store and the host's separate filesystems.
func (l *Local) mounts(s Spec, f paths) []specs.Mount {
	bind := func(src, dst string, more ...string) specs.Mount {
		return specs.Mount{Source: src, Destination: dst, Type: "bind", Options: append([]string{"bind", "rw"}, more...)}
	}
	m := []specs.Mount{
		{Source: "proc", Destination: "/proc", Type: "proc"},
		{Source: "sysfs", Destination: "/sys", Type: "sysfs", Options: []string{"nosuid", "noexec", "nodev"}},
		{Source: "cgroup", Destination: "/sys/fs/cgroup", Type: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", "rw"}},
		bind("/dev", "/dev", "rbind", "rslave"),
		{Source: "devpts", Destination: "/dev/pts", Type: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Source: "shm", Destination: "/dev/shm", Type: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777"}},
		{Source: "tmpfs", Destination: "/run", Type: "tmpfs", Options: []string{"nosuid", "nodev", "mode=0755"}},
		{Source: "tmpfs", Destination: "/tmp", Type: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777"}},
		bind(f.run(), RunDir),
		bind(f.bin(), BinDir),
	}
	if _, err := os.Stat("/dev/mqueue"); err == nil { // /dev is the host's, so no mount point can be created in it
		m = append(m, specs.Mount{Source: "mqueue", Destination: "/dev/mqueue", Type: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}})
	}
	own := binds()
	for _, dst := range slices.Sorted(maps.Keys(own)) {
		m = append(m, bind(f.data(own[dst]), dst, "rshared")) // pods may use Bidirectional mount propagation
	}
	if !s.Bare {
		m = append(m, specs.Mount{Source: l.StoreDir(), Destination: "/var/lib/slipway/store", Type: "bind", Options: []string{"bind", "ro"}})
	}
	return append(m, hostSystemMounts()...)
}

// hostSystemMounts binds the host's separate filesystems that contain programs: an overlay over / does not
// include them.
func hostSystemMounts() []specs.Mount {
	mounts, err := readMounts("/proc/self/mountinfo")
	if err != nil {
		return nil // slipway itself needs only the programs on the root filesystem
	}
	var out []specs.Mount
	for _, m := range mounts {
		if slices.Contains([]string{"/usr", "/nix", "/nix/store", "/gnu", "/lib/modules"}, m.point) {
			out = append(out, specs.Mount{Source: m.point, Destination: m.point, Type: "bind", Options: []string{"bind", "ro"}})
		}
	}
	return out
}

// ownCapabilities is the capability bounding set of this process: a machine gets what the host's root has.
func ownCapabilities() ([]string, error) {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, fmt.Errorf("read own capabilities: %w", err)
	}
	var bits uint64
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(line, "CapBnd:"); ok {
			if bits, err = strconv.ParseUint(strings.TrimSpace(v), 16, 64); err != nil {
				return nil, fmt.Errorf("read own capabilities: %w", err)
			}
		}
	}
	var caps []string
	for i, name := range capabilityNames() {
		if bits&(1<<i) != 0 {
			caps = append(caps, "CAP_"+name)
		}
	}
	return caps, nil
}

// capabilityNames is in the order of linux/capability.h: the index is the bit number.
func capabilityNames() []string {
	return strings.Fields(`CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
		NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE
		SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL
		SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE`)
}

// fileLimit is this process's hard limit of open files: raising it may not be allowed, even to root.
func fileLimit() (uint64, error) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0, fmt.Errorf("read limit of open files: %w", err)
	}
	return min(r.Max, 1<<20), nil
}

// Command is a program to run inside a machine.
type Command struct {
	Args []string
	Env  []string // optional: in addition to PATH, HOME and KUBECONFIG
	Dir  string   // optional: default is "/"

	Stdin          io.Reader // optional; a terminal must be given as *os.File
	Stdout, Stderr io.Writer // optional
	TTY            bool
}

// Exec runs a program in the machine and returns its exit code. The error reports that it could not be run,
// not that it exited non-zero. When ctx ends, the program gets SIGTERM and, two seconds later, SIGKILL.
func (l *Local) Exec(ctx context.Context, cluster, name string, c Command) (exitCode int, err error) {
	if len(c.Args) == 0 {
		return -1, errors.New("exec in machine: no command given")
	}
	if _, err := l.pid1(ctx, cluster, name); err != nil {
		return -1, err
	}
	dir := c.Dir
	if dir == "" {
		dir = "/"
	}
	args := []string{"exec", "--cwd", dir}
	for _, e := range append([]string{"PATH=" + PathInside, "HOME=/root", "KUBECONFIG=/etc/kubernetes/admin.conf"}, c.Env...) {
		args = append(args, "--env", e)
	}
	if c.TTY {
		args = append(args, "--tty")
	}
	cmd := l.runcCommand(ctx, cluster, append(append(args, name), c.Args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // runc forwards it
	cmd.WaitDelay = 2 * time.Second
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode(), nil
	}
	if err != nil {
		return -1, fmt.Errorf("exec in machine %s: %w", name, err)
	}
	return 0, nil
}
