// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// PathInside is PATH of everything in a machine.
const PathInside = BinDir + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// writeBundle writes what runc reads. It is written anew at each boot and needs no durability.
func (l *Local) writeBundle(s Spec) error {
	caps, err := ownCapabilities()
	if err != nil {
		return err
	}
	limit, err := fileLimit()
	if err != nil {
		return err
	}
	f := l.folders(s.Cluster, s.Name)
	// Away with all of it: runc does not write its pid file when a killed one left a part of it.
	if err := errors.Join(os.RemoveAll(f.bundle()), os.Mkdir(f.bundle(), 0o700)); err != nil {
		return fmt.Errorf("make machine bundle: %w", err)
	}
	spec := specs.Spec{
		Version:  specs.Version,
		Hostname: s.Name,
		Root:     &specs.Root{Path: f.rootfs()},
		Mounts:   append(l.mounts(s, f), s.initMounts(f)...),
		Process: &specs.Process{
			Args:         s.firstProcess(),
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

// firstProcess is the command line of PID 1.
func (s Spec) firstProcess() []string {
	args := []string{BinDir + "/slipway", "machine-init"}
	if s.Init == Systemd {
		return append(args, "--systemd")
	}
	return append(append(args, "--"), s.Agent...)
}

// insideEnv is the environment of PID 1 and the agent.
func insideEnv() []string {
	return []string{"PATH=" + PathInside, "HOME=/root", "TERM=dumb", "KUBECONFIG=/etc/kubernetes/admin.conf"}
}

// initMounts are those that only this kind of PID 1 needs.
func (s Spec) initMounts(f folders) []specs.Mount {
	if s.Init != Systemd {
		return nil
	}
	m := []specs.Mount{{Source: f.data(systemdData), Destination: systemdEtc, Type: "bind", Options: []string{"bind", "rw"}}}
	if _, err := os.Stat("/dev/console"); err == nil { // systemd would take the host's for its own
		m = append(m, specs.Mount{Source: os.DevNull, Destination: "/dev/console", Type: "bind", Options: []string{"bind", "rw"}})
	}
	return m
}

func (l *Local) cgroupOf(cluster string, more ...string) string {
	return filepath.Join(append([]string{l.cgroup, cluster}, more...)...)
}

func (l *Local) mounts(s Spec, f folders) []specs.Mount {
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
	if _, err := os.Stat("/dev/mqueue"); err == nil { // /dev is the host's: no mount point is made in it
		m = append(m, specs.Mount{Source: "mqueue", Destination: "/dev/mqueue", Type: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}})
	}
	own := binds()
	for _, dst := range slices.Sorted(maps.Keys(own)) {
		m = append(m, bind(f.data(own[dst]), dst, "rshared")) // pods may ask for mounts that are seen on both sides
	}
	if !s.Bare {
		m = append(m, specs.Mount{Source: l.StoreDir(), Destination: "/var/lib/slipway/store", Type: "bind", Options: []string{"bind", "ro"}})
	}
	return append(m, hostSystemMounts()...)
}

// hostSystemMounts are the host's separate filesystems that programs need, for an overlay shows only the one of /.
func hostSystemMounts() []specs.Mount {
	mounts, err := readMounts("/proc/self/mountinfo")
	if err != nil {
		return nil // the programs in / itself are enough for slipway
	}
	var out []specs.Mount
	for _, m := range mounts {
		if slices.Contains([]string{"/usr", "/nix", "/nix/store", "/gnu", "/lib/modules"}, m.point) {
			out = append(out, specs.Mount{Source: m.point, Destination: m.point, Type: "bind", Options: []string{"bind", "ro"}})
		}
	}
	return out
}

// ownCapabilities is every capability that this process could give away: a machine has what its host's root has.
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

// capabilityNames in the order of linux/capability.h.
func capabilityNames() []string {
	return strings.Fields(`CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
		NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE
		SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL
		SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE`)
}

// fileLimit is the host's own hard limit of open files: raising it needs a right that root may lack.
func fileLimit() (uint64, error) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0, fmt.Errorf("read limit of open files: %w", err)
	}
	return min(r.Max, 1<<20), nil
}
