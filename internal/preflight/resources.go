// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	gib = 1 << 30
	mib = 1 << 20
	kib = 1 << 10
)

// checkRoot looks at the filesystem that will hold machines and components.
func checkRoot(_ context.Context, _ host, o Options) []Finding {
	dir, err := existing(o.Root)
	var st unix.Statfs_t
	if err == nil {
		err = unix.Statfs(dir, &st)
	}
	if err != nil {
		return one(Finding{ID: "disk", Severity: Problem, What: "cannot look at " + o.Root, Detail: err.Error(), Remedy: "mkdir -p " + o.Root})
	}
	return []Finding{judgeFilesystem(o.Root, int64(st.Type)), judgeSpace(o.Root, st.Bavail*uint64(st.Bsize))}
}

// existing is the nearest folder above path that is there.
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
		return Finding{ID: "filesystem", Severity: OK, What: root + " lies on a local disk's filesystem"}
	}
	return Finding{
		ID: "filesystem", Severity: Problem, What: root + " lies on " + name,
		Detail: "containerd's and the kubelet's data need a local disk's filesystem such as ext4, xfs or btrfs",
		Remedy: fmt.Sprintf("mount a disk at %s, or bind-mount a folder of one: mount --bind /disk/slipway %s", root, root),
	}
}

func judgeSpace(root string, free uint64) Finding {
	f := Finding{ID: "disk", Severity: OK, What: fmt.Sprintf("%s free for %s", size(free), root)}
	switch {
	case free < 5*gib:
		f.Severity, f.Detail, f.Remedy = Problem, "a cluster needs 5 GiB for components, images and etcd", "free some space: du -xh --max-depth=2 / | sort -h | tail"
	case free < 10*gib:
		f.Severity, f.Detail = Warning, "enough to begin with; the kubelet evicts pods when less than a tenth of the disk is free"
	}
	return f
}

func checkMemory(_ context.Context, h host, _ Options) []Finding {
	available, known := h.meminfo("MemAvailable")
	memory := Finding{ID: "memory", Severity: OK, What: size(available) + " of memory available"}
	switch {
	case !known:
		memory = Finding{ID: "memory", Severity: Warning, What: "available memory is not known", Detail: "/proc/meminfo has no MemAvailable"}
	case available < 768*mib:
		memory.Severity, memory.Detail, memory.Remedy = Problem, "control plane and node components need 768 MiB to start", "end some programs: ps aux --sort=-rss | head"
	case available < 1536*mib:
		memory.Severity, memory.Detail = Warning, "1.5 GiB leave room for pods; with less the first ones may be evicted"
	}
	swap := Finding{ID: "swap", Severity: OK, What: "no swap"}
	if total, _ := h.meminfo("SwapTotal"); total > 0 {
		swap.What, swap.Detail = size(total)+" of swap", "the kubelet runs with failSwapOn: false; pods do not use swap"
	}
	return []Finding{memory, swap}
}

func (h host) meminfo(key string) (uint64, bool) {
	for line := range strings.Lines(h.read("proc/meminfo")) {
		if v, ok := strings.CutPrefix(line, key+":"); ok {
			n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			return n * kib, err == nil
		}
	}
	return 0, false
}

func checkClock(_ context.Context, _ host, o Options) []Finding {
	return one(judgeClock(time.Now(), o.Built))
}

// judgeClock: certificates made with a clock that is behind are not valid yet for anybody whose clock is right.
func judgeClock(now, built time.Time) Finding {
	if built.IsZero() {
		built = commitTime()
	}
	const slack = 24 * time.Hour // builders' clocks err too
	if !now.Before(built.Add(-slack)) {
		return Finding{ID: "clock", Severity: OK, What: "clock " + now.UTC().Format(time.DateTime) + " UTC"}
	}
	return Finding{
		ID: "clock", Severity: Problem, What: "the clock says " + now.UTC().Format(time.DateTime) + " UTC, which is before this program was made",
		Detail: "certificates would not be valid", Remedy: "timedatectl set-ntp true, or date -s with the right time",
	}
}

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

func checkLimits(_ context.Context, h host, o Options) []Finding {
	out := []Finding{checkInotify(h, o)}
	for _, l := range []struct {
		id, file, sysctl string
		least, wanted    uint64
	}{
		{"inotify-watches", "proc/sys/fs/inotify/max_user_watches", "fs.inotify.max_user_watches", 65536, 524288},
	} {
		n, known := h.number(l.file)
		f := Finding{ID: l.id, Severity: OK, What: fmt.Sprintf("%s = %d", l.sysctl, n)}
		if known && n < l.least {
			f.Severity, f.Detail = Warning, "kubelet, containerd and many pods watch files; the limit is for all processes of root together"
			f.Remedy = fmt.Sprintf("sysctl -w %s=%d", l.sysctl, l.wanted)
		}
		out = append(out, f)
	}
	return out
}

// What a machine's components hold open, as counted on running ones, with room for some pods: a process that gets no more ends with
// "too many open files".
const (
	inotifyControl = 32
	inotifyWorker  = 16
	inotifyOthers  = 40 // of the host's own programs
	inotifyWanted  = 1024
)

// checkInotify: the limit is one for all machines of the host, since they are all root's.
func checkInotify(h host, o Options) Finding {
	const sysctl = "fs.inotify.max_user_instances"
	n, known := h.number("proc/sys/fs/inotify/max_user_instances")
	f := Finding{ID: "inotify-instances", Severity: OK, What: fmt.Sprintf("%s = %d", sysctl, n)}
	needs := uint64(inotifyOthers + inotifyControl*max(o.Controls, 1) + inotifyWorker*o.Workers)
	if known && n < needs {
		f.Severity = Problem
		f.What = fmt.Sprintf("%s = %d, and %d machines need about %d", sysctl, n, max(o.Controls, 1)+o.Workers, needs)
		f.Detail = "kubelet, kube-apiserver and containerd watch files; the limit is for all processes of root together"
		f.Setting = fmt.Sprintf("%s=%d", sysctl, max(inotifyWanted, needs))
		f.Remedy = "sysctl -w " + f.Setting
	}
	return f
}

// checkPort: a kubeconfig names the port, so the proxy must get it again. It is asked only for one that does not run.
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
			ID: "port", Severity: Problem, What: fmt.Sprintf("127.0.0.1:%d is taken", o.APIPort), Detail: "the cluster's kubeconfig names it: " + err.Error(),
			Remedy: fmt.Sprintf("end the process that uses it: ss -ltnp 'sport = %d'", o.APIPort),
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
