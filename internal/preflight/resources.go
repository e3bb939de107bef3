// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	gib = 1 << 30
	mib = 1 << 20
	kib = 1 << 10
)

// checkRoot checks the filesystem that will contain machines and components.
func checkRoot(_ context.Context, _ host, o Options) []Finding {
	dir, err := existing(o.Root)
	var st unix.Statfs_t
	if err == nil {
		err = unix.Statfs(dir, &st)
	}
	if err != nil {
		return one(Finding{ID: "disk", Severity: Problem, What: "cannot check " + o.Root, Detail: err.Error(), Remedy: "mkdir -p " + o.Root})
	}
	return []Finding{judgeFilesystem(o.Root, int64(st.Type)), judgeSpace(o.Root, st.Bavail*uint64(st.Bsize))}
}

// existing returns the nearest directory at or above path that exists.
func existing(path string) (string, error) {
	path, err := filepath.Abs(path)
	for ; err == nil; path = filepath.Dir(path) {
		if _, err := os.Stat(path); err == nil || path == "/" {
			return path, err
		}
	}
	return "", err
}

func judgeFilesystem(root string, magic int64) Finding {
	name := map[int64]string{
		unix.OVERLAYFS_SUPER_MAGIC: "overlayfs", unix.TMPFS_MAGIC: "tmpfs", unix.RAMFS_MAGIC: "ramfs", unix.NFS_SUPER_MAGIC: "NFS",
		unix.FUSE_SUPER_MAGIC: "FUSE", 0x6969_6969: "NFS", unix.SMB2_SUPER_MAGIC: "SMB", unix.V9FS_MAGIC: "9p", unix.SQUASHFS_MAGIC: "squashfs",
	}[magic]
	if name == "" {
		return Finding{ID: "filesystem", Severity: OK, What: root + " is on a local disk"}
	}
	return Finding{
		ID: "filesystem", Severity: Problem, What: root + " is on " + name,
		Detail: "containerd and the kubelet need a filesystem on a local disk, such as ext4, xfs or btrfs",
		Remedy: fmt.Sprintf("mount a disk at %s, or bind-mount a directory of one: mount --bind /disk/slipway %s", root, root),
	}
}

func judgeSpace(root string, free uint64) Finding {
	f := Finding{ID: "disk", Severity: OK, What: fmt.Sprintf("%s free for %s", size(free), root)}
	switch {
	case free < 5*gib:
		f.Severity, f.Detail, f.Remedy = Problem, "a cluster needs 5 GiB for components, images and etcd", "free up space: du -xh --max-depth=2 / | sort -h | tail"
	case free < 10*gib:
		f.Severity, f.Detail = Warning, "enough to start; the kubelet evicts pods when less than a tenth of the disk is free"
	}
	return f
}

func checkMemory(_ context.Context, h host, _ Options) []Finding {
	available, known := h.meminfo("MemAvailable")
	memory := Finding{ID: "memory", Severity: OK, What: size(available) + " of memory available"}
	switch {
	case !known:
		memory = Finding{ID: "memory", Severity: Warning, What: "available memory is unknown", Detail: "/proc/meminfo has no MemAvailable"}
	case available < 768*mib:
		memory.Severity, memory.Detail, memory.Remedy = Problem, "control plane and node components need 768 MiB to start", "stop some programs: ps aux --sort=-rss | head"
	case available < 1536*mib:
		memory.Severity, memory.Detail = Warning, "with less than 1.5 GiB the first pods may be evicted"
	}
	swap := Finding{ID: "swap", Severity: OK, What: "no swap"}
	if total, _ := h.meminfo("SwapTotal"); total > 0 {
		swap.What, swap.Detail = size(total)+" of swap", "the kubelet runs with failSwapOn: false; pods do not use swap"
	}
	return []Finding{memory, swap}
}

func checkClock(_ context.Context, _ host, o Options) []Finding {
	return one(judgeClock(time.Now(), o.Built))
}

// judgeClock compares the clock with the time of the build: certificates issued by a clock that is behind
// are not valid yet on machines whose clock is right.
func judgeClock(now, built time.Time) Finding {
	if built.IsZero() {
		built = commitTime()
	}
	const slack = 24 * time.Hour // the builder's clock may be wrong, too
	if !now.Before(built.Add(-slack)) {
		return Finding{ID: "clock", Severity: OK, What: "clock " + now.UTC().Format(time.DateTime) + " UTC"}
	}
	return Finding{
		ID: "clock", Severity: Problem, What: "the clock says " + now.UTC().Format(time.DateTime) + " UTC, which is before this program was built",
		Detail: "certificates would not be valid", Remedy: "timedatectl set-ntp true, or date -s with the right time",
	}
}

// commitTime returns when this program's commit was made, or a time before all commits if the build does
// not say.
func commitTime() time.Time {
	oldest := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return oldest
	}
	for _, s := range info.Settings {
		if t, err := time.Parse(time.RFC3339, s.Value); s.Key == "vcs.time" && err == nil {
			return t
		}
	}
	return oldest
}

// checkTimeSync warns about a clock that no time daemon keeps right, even if it is right now.
func checkTimeSync(ctx context.Context, h host, _ Options) []Finding {
	if err := h.prepared().Done(ctx, []string{"time-sync"}); err != nil {
		return one(Finding{
			ID: "time-sync", Severity: Warning, What: "the clock is not synchronised",
			Detail: "machines whose clocks differ reject each other's certificates", Remedy: "timedatectl set-ntp true, or start chrony",
		})
	}
	return one(Finding{ID: "time-sync", Severity: OK, What: "the clock is synchronised"})
}

// checkHostname warns only: nodes get their names from the spec.
func checkHostname(_ context.Context, h host, _ Options) []Finding {
	name := strings.TrimSpace(h.read("proc/sys/kernel/hostname"))
	short, _, _ := strings.Cut(name, ".")
	if slices.Contains([]string{"", "(none)", "localhost"}, strings.ToLower(short)) {
		return one(Finding{
			ID: "hostname", Severity: Warning, What: "the machine has no host name", Detail: "logs and prompts do not tell it from other machines",
			Remedy: "hostnamectl set-hostname NAME, or spec.os.hostname: node",
		})
	}
	return one(Finding{ID: "hostname", Severity: OK, What: "host name " + name})
}

// inotify instances that a machine's components use, as counted on running machines, with room for some
// pods. A process that gets none ends with "too many open files".
const (
	inotifyControl = 32
	inotifyWorker  = 16
	inotifyOthers  = 40 // the host's own programs
	inotifyWanted  = 1024
)

// checkLimits checks inotify's limits, which all machines of the host share because all of them run as root.
func checkLimits(_ context.Context, h host, o Options) []Finding {
	const instances, watches = "fs.inotify.max_user_instances", "fs.inotify.max_user_watches"
	n, known := h.number("proc/sys/fs/inotify/max_user_instances")
	i := Finding{ID: "inotify-instances", Severity: OK, What: fmt.Sprintf("%s = %d", instances, n)}
	if needs := uint64(inotifyOthers + inotifyControl*max(o.Controls, 1) + inotifyWorker*o.Workers); known && n < needs {
		i.Severity = Problem
		i.What = fmt.Sprintf("%s = %d, but %d machines need about %d", instances, n, max(o.Controls, 1)+o.Workers, needs)
		i.Detail = "kubelet, kube-apiserver and containerd watch files; the limit applies to all processes of root together"
		i.Setting = fmt.Sprintf("%s=%d", instances, max(inotifyWanted, needs))
		i.Remedy = "sysctl -w " + i.Setting
	}
	n, known = h.number("proc/sys/fs/inotify/max_user_watches")
	w := Finding{ID: "inotify-watches", Severity: OK, What: fmt.Sprintf("%s = %d", watches, n)}
	if known && n < 65536 {
		w.Severity, w.Detail = Warning, "kubelet, containerd and many pods watch files; the limit applies to all processes of root together"
		w.Remedy = "sysctl -w " + watches + "=524288"
	}
	return []Finding{i, w}
}

// checkPort checks the port that the cluster's kubeconfig names and that a stopped proxy needs again.
func checkPort(ctx context.Context, _ host, o Options) []Finding {
	if o.APIPort == 0 {
		return nil
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp4", fmt.Sprintf("127.0.0.1:%d", o.APIPort))
	if err == nil {
		err = ln.Close()
	}
	if err != nil {
		return one(Finding{
			ID: "port", Severity: Problem, What: fmt.Sprintf("127.0.0.1:%d is in use", o.APIPort), Detail: "the cluster's kubeconfig names it: " + err.Error(),
			Remedy: fmt.Sprintf("stop the process that uses it: ss -ltnp 'sport = %d'", o.APIPort),
		})
	}
	return one(Finding{ID: "port", Severity: OK, What: fmt.Sprintf("127.0.0.1:%d is free", o.APIPort)})
}

func size(n uint64) string {
	if n < gib {
		return fmt.Sprintf("%d MiB", n/mib)
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/gib)
}
