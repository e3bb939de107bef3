// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

func checkRights(_ context.Context, h host, _ Options) []Finding {
	root := Finding{ID: "root", Severity: OK, What: "runs as root"}
	if os.Geteuid() != 0 {
		root = Finding{ID: "root", Severity: Problem, What: "does not run as root", Detail: "machines need namespaces, mounts and cgroups of the host", Remedy: "run the same command with sudo"}
	}
	return []Finding{root, checkCapabilities(h), checkOOM(h)}
}

func checkCapabilities(h host) Finding {
	needed := []struct {
		bit  int
		name string
	}{
		{unix.CAP_CHOWN, "CAP_CHOWN"},
		{unix.CAP_DAC_OVERRIDE, "CAP_DAC_OVERRIDE"},
		{unix.CAP_FOWNER, "CAP_FOWNER"},
		{unix.CAP_KILL, "CAP_KILL"},
		{unix.CAP_MKNOD, "CAP_MKNOD"},
		{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"},
		{unix.CAP_NET_BIND_SERVICE, "CAP_NET_BIND_SERVICE"},
		{unix.CAP_NET_RAW, "CAP_NET_RAW"},
		{unix.CAP_SETGID, "CAP_SETGID"},
		{unix.CAP_SETPCAP, "CAP_SETPCAP"},
		{unix.CAP_SETUID, "CAP_SETUID"},
		{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"},
		{unix.CAP_SYS_CHROOT, "CAP_SYS_CHROOT"},
		{unix.CAP_SYS_PTRACE, "CAP_SYS_PTRACE"},
	}
	var missing []string
	for _, c := range needed {
		if !h.has(c.bit) {
			missing = append(missing, c.name)
		}
	}
	if len(missing) == 0 {
		return Finding{ID: "capabilities", Severity: OK, What: "has the capabilities that machines need"}
	}
	return Finding{
		ID: "capabilities", Severity: Problem, What: "lacks " + strings.Join(missing, ", "),
		Detail: "root inside a container or sandbox has been given less than a host's root",
		Remedy: "run slipway on the host itself, or start the container with --privileged --cgroupns=host",
	}
}

func checkOOM(h host) Finding {
	if h.facts().OOMScoreAdj {
		return Finding{ID: "oom-score", Severity: OK, What: "may protect processes from the OOM killer"}
	}
	return Finding{
		ID: "oom-score", Severity: Warning, What: "lacks CAP_SYS_RESOURCE",
		Detail: "components cannot be protected from the OOM killer, nor limits raised; containerd runs with restrict_oom_score_adj",
	}
}

func checkCgroups(_ context.Context, h host, _ Options) []Finding {
	version := Finding{ID: "cgroup", Severity: OK, What: "cgroup v2"}
	switch h.cgroupVersion() {
	case 0:
		return one(Finding{ID: "cgroup", Severity: Problem, What: "no cgroups are mounted", Remedy: "mount -t cgroup2 none /sys/fs/cgroup"})
	case 1:
		version = Finding{
			ID: "cgroup", Severity: Warning, What: "cgroup v1 (or hybrid)",
			Detail: "Kubernetes has deprecated it; the kubelet runs with failCgroupV1: false and the cgroupfs driver",
			Remedy: "boot with systemd.unified_cgroup_hierarchy=1 when the distribution offers it",
		}
	}
	on := h.controllers()
	var missing []string
	for _, c := range []string{"cpu", "cpuset", "memory", "pids"} {
		if !slices.Contains(on, c) {
			missing = append(missing, c)
		}
	}
	controllers := Finding{ID: "controllers", Severity: OK, What: "cgroup controllers cpu, cpuset, memory, pids"}
	if len(missing) > 0 {
		controllers = Finding{
			ID: "controllers", Severity: Problem, What: "cgroup controllers are switched off: " + strings.Join(missing, ", "),
			Detail: "the kubelet does not start without them",
			Remedy: fmt.Sprintf("boot with cgroup_enable=%s", strings.Join(missing, " cgroup_enable=")),
		}
	}
	return []Finding{version, controllers}
}
