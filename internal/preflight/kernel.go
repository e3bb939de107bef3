// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

func checkRights(_ context.Context, h host, _ Options) []Finding {
	root := Finding{ID: "root", Severity: OK, What: "runs as root"}
	if os.Geteuid() != 0 {
		root = Finding{ID: "root", Severity: Problem, What: "does not run as root", Detail: "machines need namespaces, mounts and cgroups of the host", Remedy: "run the same command with sudo"}
	}
	oom := Finding{ID: "oom-score", Severity: OK, What: "may protect processes from the OOM killer"}
	if !h.hasCapability(unix.CAP_SYS_RESOURCE) {
		oom = Finding{
			ID: "oom-score", Severity: Warning, What: "lacks CAP_SYS_RESOURCE",
			Detail: "components cannot be protected from the OOM killer, limits cannot be raised; containerd runs with restrict_oom_score_adj",
		}
	}
	return []Finding{root, checkCapabilities(h), oom}
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
		if !h.hasCapability(c.bit) {
			missing = append(missing, c.name)
		}
	}
	if len(missing) == 0 {
		return Finding{ID: "capabilities", Severity: OK, What: "has the capabilities that machines need"}
	}
	return Finding{
		ID: "capabilities", Severity: Problem, What: "lacks " + strings.Join(missing, ", "),
		Detail: "root in a container or sandbox has fewer capabilities than root on a host",
		Remedy: "run slipway on the host itself, or start the container with --privileged --cgroupns=host",
	}
}

// kube-proxy's nftables mode needs this kernel (KEP-3866).
const oldestMajor, oldestMinor = 5, 13

func checkKernel(_ context.Context, h host, _ Options) []Finding {
	release := strings.TrimSpace(h.read("proc/sys/kernel/osrelease"))
	version := Finding{ID: "kernel", Severity: OK, What: "Linux " + release}
	var major, minor int
	if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n == 2 && (major < oldestMajor || major == oldestMajor && minor < oldestMinor) {
		version = Finding{
			ID: "kernel", Severity: Problem, What: "Linux " + release + " is too old",
			Detail: fmt.Sprintf("kube-proxy's nftables mode needs %d.%d", oldestMajor, oldestMinor), Remedy: "upgrade the kernel",
		}
	}
	var missing []string
	for _, ns := range []string{"pid", "net", "ipc", "uts", "mnt", "cgroup"} {
		if !h.exists("proc/self/ns/" + ns) {
			missing = append(missing, ns)
		}
	}
	namespaces := Finding{ID: "namespaces", Severity: OK, What: "namespaces"}
	if len(missing) > 0 {
		namespaces = Finding{ID: "namespaces", Severity: Problem, What: "the kernel lacks namespaces: " + strings.Join(missing, ", "), Remedy: "use a distribution's standard kernel"}
	}
	return []Finding{version, namespaces, checkOverlay(h)}
}

// checkOverlay tries a mount in a new mount namespace, which loads the module if there is one. The attempt
// lacks options, so it always fails and mounts nothing; the error tells whether the kernel knows overlayfs.
func checkOverlay(h host) Finding {
	ok := Finding{ID: "overlayfs", Severity: OK, What: "overlayfs"}
	if strings.Contains(h.read("proc/filesystems"), "\toverlay\n") {
		return ok
	}
	err := inNamespace(unix.CLONE_NEWNS, func() error {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		return unix.Mount("overlay", "/", "overlay", 0, "")
	})
	if errors.Is(err, unix.ENODEV) {
		return Finding{ID: "overlayfs", Severity: Problem, What: "the kernel has no overlayfs", Detail: "machines and containers need it", Remedy: "modprobe overlay, or use a distribution's standard kernel"}
	}
	if errors.Is(err, unix.EPERM) {
		return Finding{ID: "overlayfs", Severity: Warning, What: "overlayfs could not be checked", Detail: "the check needs root"}
	}
	return ok
}

// checkNetwork creates one interface of each kind in a network namespace that ends with the check.
func checkNetwork(context.Context, host, Options) []Finding {
	names := []string{"bridge", "veth", "nf_tables", "vxlan"}
	errs := make([]error, len(names))
	err := inNamespace(unix.CLONE_NEWNET, func() error {
		attrs := func(name string) netlink.LinkAttrs { a := netlink.NewLinkAttrs(); a.Name = name; return a }
		errs[0] = netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs("b")})
		errs[1] = netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs("v"), PeerName: "w"})
		errs[2] = queryNftables()
		errs[3] = netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: attrs("x"), VxlanId: 1, Port: 8472})
		return nil
	})
	if err != nil {
		return one(Finding{ID: "network", Severity: Problem, What: "cannot create a network namespace", Detail: err.Error(), Remedy: "run as root on the host itself"})
	}
	var out []Finding
	for i, name := range names {
		f := Finding{ID: name, Severity: OK, What: name}
		if errs[i] != nil {
			f = Finding{ID: name, Severity: Problem, What: "the kernel has no " + name, Detail: errs[i].Error(), Remedy: "modprobe " + name + ", or use a distribution's standard kernel"}
			if name == "vxlan" {
				f.Severity, f.Detail = Warning, "pods of different machines need it only if the machines do not share a network: "+f.Detail
			}
		}
		out = append(out, f)
	}
	return out
}

// queryNftables requests the ruleset's generation (NFT_MSG_GETGEN), which needs no program.
func queryNftables() error {
	const getGeneration = 16
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|getGeneration, 0)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC})
	_, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	return err
}

// inNamespace runs f on a thread in a new namespace, which ends with the thread.
func inNamespace(namespace int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			done <- inNamespace(namespace, f) // the main thread cannot end; use another
			runtime.UnlockOSThread()
			return
		}
		if err := unix.Unshare(namespace); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
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
			Remedy: "boot with systemd.unified_cgroup_hierarchy=1 if the distribution supports it",
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
			ID: "controllers", Severity: Problem, What: "cgroup controllers are disabled: " + strings.Join(missing, ", "),
			Detail: "the kubelet does not start without them",
			Remedy: fmt.Sprintf("boot with cgroup_enable=%s", strings.Join(missing, " cgroup_enable=")),
		}
	}
	return []Finding{version, controllers}
}

// checkModules looks for br_netfilter, the one module that nothing loads on demand. Local machines load no
// modules: the kernel is the host's.
func checkModules(ctx context.Context, h host, _ Options) []Finding {
	const name = "br_netfilter"
	f := Finding{ID: name, Severity: OK, What: name}
	if h.exists("proc/sys/net/bridge") {
		return one(f)
	}
	f.Severity, f.Detail = Warning, "a pod cannot reach a Service, such as the cluster DNS, whose pod runs on the same node"
	if err := h.prepared().Done(ctx, []string{"modules", "-" + name}); err != nil { // the kernel has it
		f.What, f.Module, f.Remedy = name+" is not loaded", name, "modprobe "+name
		return one(f)
	}
	f.What, f.Remedy = "the kernel has no "+name, "use a distribution's standard kernel"
	return one(f)
}
