// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// mount is a line of mountinfo: the root of the mount within its filesystem, the mount point, and the type.
type mount struct{ root, point, fstype string }

// readMounts reads a mountinfo file.
func readMounts(path string) ([]mount, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	return parseMounts(string(data)), nil
}

// parseMounts reads the mountinfo format of proc(5): "22 27 0:21 / /proc rw shared:5 - proc proc rw".
func parseMounts(info string) []mount {
	var mounts []mount
	for line := range strings.Lines(info) {
		before, after, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 6 || len(g) < 1 {
			continue
		}
		mounts = append(mounts, mount{unescape(f[3]), unescape(f[4]), g[0]})
	}
	return mounts
}

// unescape replaces the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// unmountBelow unmounts everything mounted at or below dir in this mount namespace, the last mount first.
func unmountBelow(dir string) error {
	for range 8 { // mounts may be stacked; each round removes the visible ones
		mounts, err := readMounts("/proc/self/mountinfo")
		if err != nil {
			return err
		}
		found := 0
		for i := len(mounts) - 1; i >= 0; i-- {
			p := mounts[i].point
			if p != dir && !strings.HasPrefix(p, dir+"/") {
				continue
			}
			found++
			if err := unix.Unmount(p, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
				return fmt.Errorf("unmount %s: %w", p, err)
			}
		}
		if found == 0 {
			return nil
		}
	}
	return fmt.Errorf("unmount %s: another process keeps mounting there", dir)
}

// mountOverlay mounts the machine's root filesystem. It must run in a private mount namespace.
func mountOverlay(f paths) error {
	esc := strings.NewReplacer(`\`, `\\`, `,`, `\,`, `:`, `\:`)
	options := fmt.Sprintf("lowerdir=/,upperdir=%s,workdir=%s", esc.Replace(f.upper()), esc.Replace(f.work()))
	err := unix.Mount("overlay", f.rootfs(), "overlay", 0, options)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("mount machine root: this kernel has no overlayfs (try modprobe overlay): %w", err)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("mount machine root: the kernel does not accept the host's / (%s) as a lower layer or %s (%s) as an upper layer; "+
			"machines need a host with a regular root filesystem: %w", fsName("/"), f.upper(), fsName(f.upper()), err)
	}
	return fmt.Errorf("mount machine root: overlay over / with %s: %w", f.upper(), err)
}

// fsName is the type of the filesystem at path, for messages.
func fsName(path string) string {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return err.Error()
	}
	switch st.Type {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	case unix.NFS_SUPER_MAGIC:
		return "nfs"
	}
	return fmt.Sprintf("filesystem type %#x", st.Type)
}

// onNewThread runs f on an operating system thread that exits afterwards, so f may change the thread's
// namespaces. Processes started by f inherit them. The process's main thread is never used: it cannot exit
// and would keep the namespaces alive.
func onNewThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread exits with this goroutine
		if unix.Gettid() == unix.Getpid() {
			done <- onNewThread(f) // meanwhile this goroutine occupies the main thread
			runtime.UnlockOSThread()
			return
		}
		done <- f()
	}()
	return <-done
}

// inPrivateMounts runs f in a new mount namespace: only f and the processes it starts see f's mounts, which
// end with them.
func inPrivateMounts(f func() error) error {
	return onNewThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("create mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		return f()
	})
}
