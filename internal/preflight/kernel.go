// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// oldestKernel is what kube-proxy's nftables mode needs (KEP-3866).
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
		namespaces = Finding{ID: "namespaces", Severity: Problem, What: "the kernel lacks namespaces: " + strings.Join(missing, ", "), Remedy: "use a distribution's ordinary kernel"}
	}
	return []Finding{version, namespaces, checkOverlay(h)}
}

// checkOverlay asks the kernel in a mount namespace of its own: the attempt loads the module when there is one. It must fail
// for its missing options and mounts nothing.
func checkOverlay(h host) Finding {
	ok := Finding{ID: "overlayfs", Severity: OK, What: "overlayfs"}
	if strings.Contains(h.read("proc/filesystems"), "\toverlay\n") {
		return ok
	}
	err := apart(unix.CLONE_NEWNS, func() error {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		return unix.Mount("overlay", "/", "overlay", 0, "")
	})
	if errors.Is(err, unix.ENODEV) {
		return Finding{ID: "overlayfs", Severity: Problem, What: "the kernel has no overlayfs", Detail: "machines and containers are made with it", Remedy: "modprobe overlay, or use a distribution's ordinary kernel"}
	}
	if errors.Is(err, unix.EPERM) {
		return Finding{ID: "overlayfs", Severity: Warning, What: "overlayfs could not be tried", Detail: "it takes root to ask the kernel"}
	}
	return ok
}

// checkNetwork makes one of each in a network namespace that ends with the check.
func checkNetwork(context.Context, host, Options) []Finding {
	names := []string{"bridge", "veth", "nf_tables", "vxlan"}
	errs := make([]error, len(names))
	err := apart(unix.CLONE_NEWNET, func() error {
		attrs := func(name string) netlink.LinkAttrs { a := netlink.NewLinkAttrs(); a.Name = name; return a }
		errs[0] = netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs("b")})
		errs[1] = netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs("v"), PeerName: "w"})
		errs[2] = askNftables()
		errs[3] = netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: attrs("x"), VxlanId: 1, Port: 8472})
		return nil
	})
	if err != nil {
		return one(Finding{ID: "network", Severity: Problem, What: "cannot make a network namespace", Detail: err.Error(), Remedy: "run as root on the host itself"})
	}
	var out []Finding
	for i, name := range names {
		f := Finding{ID: name, Severity: OK, What: name}
		if errs[i] != nil {
			f = Finding{ID: name, Severity: Problem, What: "the kernel has no " + name, Detail: errs[i].Error(), Remedy: "modprobe " + name + ", or use a distribution's ordinary kernel"}
			if name == "vxlan" {
				f.Severity, f.Detail = Warning, "pods of different machines need it only when machines do not share a network: "+f.Detail
			}
		}
		out = append(out, f)
	}
	return out
}

// askNftables asks for the ruleset's generation (NFT_MSG_GETGEN), which needs no program.
func askNftables() error {
	const getGeneration = 16
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|getGeneration, 0)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC})
	_, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	return err
}

// apart runs f on a thread with a new namespace of its own, which ends with it.
func apart(namespace int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			done <- apart(namespace, f) // the first thread cannot end; use another
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
