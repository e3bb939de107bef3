// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// kubeletSysctls are the kernel-wide settings that the kubelet insists on. The kernel is the host's: inside a machine they
// are plain files with the values that the kubelet wants to see, so that reading is right and writing stays inside.
func kubeletSysctls() map[string]string {
	return map[string]string{
		"vm/overcommit_memory":      "1",
		"vm/panic_on_oom":           "0",
		"kernel/panic":              "10",
		"kernel/panic_on_oops":      "1",
		"kernel/keys/root_maxkeys":  "1000000",
		"kernel/keys/root_maxbytes": "25000000",
	}
}

// prepareMachine does inside what runc cannot do: mounts over /proc, and the cgroup v2 root that pods need.
func prepareMachine() error {
	if err := keepApart(); err != nil {
		return err
	}
	return leaveCgroupRoot("/sys/fs/cgroup")
}

// keepApart makes the mounts by which the kernel's settings stay the host's.
func keepApart() error {
	if os.Getpid() != 1 {
		return errors.New("machine-init is the first process of a machine and nothing else")
	}
	// As systemd does: mounts are shared unless somebody asks otherwise. Pods with Bidirectional mounts rely on it.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share machine's mounts: %w", err)
	}
	for name, value := range kubeletSysctls() {
		if err := hideSysctl(name, value); err != nil {
			return err
		}
	}
	return nil
}

// hideSysctl mounts a file with that value over a setting of the kernel.
func hideSysctl(name, value string) error {
	own := filepath.Join("/run/sysctl", strings.ReplaceAll(name, "/", "."))
	target := filepath.Join("/proc/sys", name)
	if _, err := os.Stat(target); errors.Is(err, os.ErrNotExist) {
		return nil // a kernel without it
	}
	err := errors.Join(os.MkdirAll("/run/sysctl", 0o755), os.WriteFile(own, []byte(value+"\n"), 0o644))
	if err == nil {
		err = unix.Mount(own, target, "", unix.MS_BIND, "")
	}
	if err != nil {
		return fmt.Errorf("keep %s away from the host: %w", target, err)
	}
	return nil
}

// leaveCgroupRoot moves PID 1 into a child of the cgroup v2 root and passes the controllers on: a cgroup with processes of
// its own cannot give controllers to its children. On cgroup v1 there is nothing to do.
func leaveCgroupRoot(root string) error {
	controllers, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read cgroup controllers: %w", err)
	}
	own := filepath.Join(root, "init")
	if err := os.MkdirAll(own, 0o755); err != nil {
		return fmt.Errorf("make own cgroup: %w", err)
	}
	if err := os.WriteFile(filepath.Join(own, "cgroup.procs"), []byte("0"), 0o644); err != nil {
		return fmt.Errorf("move to own cgroup: %w", err)
	}
	for c := range strings.FieldsSeq(string(controllers)) {
		// One by one: a controller that cannot be passed on, as a threaded one, must not keep the others.
		_ = os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+"+c), 0o644)
	}
	return nil
}
