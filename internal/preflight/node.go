// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/core/machine"
)

// Report is what a machine that exists says of itself, before anything is made of it.
type Report struct {
	Slipway   string    `json:"slipway"` // version of the program that says this
	Arch      string    `json:"arch"`
	Hostname  string    `json:"hostname"`
	Addresses []string  `json:"addresses"` // IPv4, of all interfaces but loopback
	Now       time.Time `json:"now"`

	Facts machine.Facts `json:"facts"`

	Lock     string    `json:"lock"` // free, claimed, committed
	Cluster  string    `json:"cluster,omitempty"`
	Node     string    `json:"node,omitempty"`
	Findings []Finding `json:"findings"`
}

// NodeOptions say what a machine will become.
type NodeOptions struct {
	Root         string // "/var/lib/slipway"; need not exist
	ControlPlane bool
	Ours         bool   // it belongs to a cluster already, so its ports and files are its own
	Host         string // optional: directory that contains the host's /proc, /etc, /usr; "/"
}

// RunNode makes all checks of a machine that will become a node. It changes nothing.
func RunNode(ctx context.Context, o NodeOptions) []Finding {
	all := Options{Root: o.Root, Host: o.Host, Workers: 1}
	if o.ControlPlane {
		all.Controls, all.Workers = 1, 0
	}
	checks := []check{
		checkRights, checkKernel, checkNetwork, checkCgroups, checkPrograms, checkRoot, checkMemory, checkClock, checkLimits,
		func(_ context.Context, h host, _ Options) []Finding { return checkFirstProcess(h) },
	}
	if !o.Ours {
		checks = append(checks,
			func(ctx context.Context, _ host, _ Options) []Finding { return checkPorts(ctx, o.ControlPlane) },
			func(_ context.Context, h host, _ Options) []Finding { return checkForeign(h) })
	}
	return runAll(ctx, all, checks...)
}

// checkFirstProcess requires systemd, which starts the agent at boot and restarts it.
func checkFirstProcess(h host) []Finding {
	if h.exists("run/systemd/system") {
		return one(Finding{ID: "systemd", Severity: OK, What: "systemd"})
	}
	return one(Finding{
		ID: "systemd", Severity: Problem, What: "its first process is not systemd", Detail: "nothing would start slipway-agent.service",
		Remedy: "use a machine with systemd; other init systems are not supported yet",
	})
}

// checkPorts finds ports in use that a node's components listen on, on all addresses.
func checkPorts(ctx context.Context, controlPlane bool) []Finding {
	ports := []int{10250, 10256}
	if controlPlane {
		ports = append(ports, 2379, 2380, 6443, 9440, 9441, 10257, 10259)
	}
	var taken []string
	var lc net.ListenConfig
	for _, p := range ports {
		ln, err := lc.Listen(ctx, "tcp4", fmt.Sprintf(":%d", p))
		if err == nil {
			_ = ln.Close()
		} else if errors.Is(err, unix.EADDRINUSE) {
			taken = append(taken, fmt.Sprint(p))
		}
	}
	if len(taken) == 0 {
		return one(Finding{ID: "ports", Severity: OK, What: "a node's ports are free"})
	}
	return one(Finding{
		ID: "ports", Severity: Problem, What: "ports are in use: " + strings.Join(taken, ", "), Detail: "a node's components listen on them",
		Remedy: "stop what uses them: ss -ltnp '( sport = " + strings.Join(taken, " or sport = ") + " )'",
	})
}

// checkForeign finds the files of a node that another installer created.
func checkForeign(h host) []Finding {
	var found []string
	for _, path := range []string{"etc/kubernetes/kubelet.conf", "etc/kubernetes/admin.conf", "var/lib/etcd/member", "var/lib/kubelet/pki", "var/lib/rancher", "var/lib/k0s"} {
		if h.exists(path) {
			found = append(found, "/"+path)
		}
	}
	if len(found) == 0 {
		return one(Finding{ID: "foreign", Severity: OK, What: "no other Kubernetes"})
	}
	return one(Finding{
		ID: "foreign", Severity: Problem, What: "it has been a node of another cluster: " + strings.Join(found, ", "),
		Detail: "its certificates and data would be mistaken for this cluster's", Remedy: "remove it from that cluster with the tool that added it (for example kubeadm reset), or reinstall the machine",
	})
}

// Arch returns the architecture of this program.
func Arch() string { return runtime.GOARCH }
