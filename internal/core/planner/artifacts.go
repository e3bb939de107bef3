// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"fmt"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// Where components lie on a node.
const (
	BinDir = "/opt/slipway/bin"
	CNIDir = "/opt/cni/bin"
)

func binPath(name string) string { return BinDir + "/" + name }

// artifacts adds the binaries that this node's roles need. kube is one multi-call binary under several names: one file,
// one set of text pages in memory.
func (n *node) artifacts() error {
	bins := map[string]string{
		"containerd": "containerd", "containerd-shim-runc-v2": "containerd-shim-runc-v2", "ctr": "ctr", "runc": "runc",
		"kubelet": "kube", "kubectl": "kubectl",
	}
	if !n.asPods() { // otherwise their images have them
		bins["kube-proxy"] = "kube"
	}
	if n.has(config.RoleControlPlane) && !n.asPods() {
		for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
			bins[name] = "kube"
		}
		bins["etcd"] = "etcd"
	}
	if n.has(config.RoleControlPlane) {
		bins["etcdctl"] = "etcdctl"
	}
	for _, name := range sorted(bins) {
		var needs []plan.Ref
		if component := bins[name]; component == "kube" || component == "kubectl" {
			needs = n.later()
		}
		if err := n.artifact(name, binPath(name), bins[name], needs...); err != nil {
			return err
		}
	}
	for _, name := range []string{"bridge", "host-local", "loopback", "portmap"} {
		if err := n.artifact(name, CNIDir+"/"+name, name); err != nil {
			return err
		}
	}
	return nil
}

// later puts off what a worker needs only when its container runtime is on its way: everything is read once, to verify it, and to
// read all of it at once would only delay what the rest waits for.
func (n *node) later() []plan.Ref {
	if n.has(config.RoleControlPlane) {
		return nil
	}
	return []plan.Ref{n.bins["containerd"], n.bins["containerd-shim-runc-v2"]}
}

func (n *node) artifact(name, path, component string, needs ...plan.Ref) error {
	digest, ok := n.components[component]
	if !ok {
		return fmt.Errorf("plan %s: the bundle has no %s: run slipway bundle build", n.cfg.Name, component)
	}
	n.bins[name] = n.Add(plan.Artifact{Path: path, Digest: digest, Name: component}, needs...)
	return nil
}
