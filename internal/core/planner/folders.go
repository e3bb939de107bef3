// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"slices"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/plan"
)

func (n *node) folders() {
	modes := map[string]uint32{
		"/etc/kubernetes": 0o755, config.PKIDir: 0o755, config.ManifestsDir: 0o755,
		"/etc/cni/net.d": 0o755, "/etc/containerd": 0o755,
		config.KubeletDir: 0o755, "/var/lib/containerd": 0o700, "/var/lib/cni": 0o755,
	}
	if n.has(config.RoleControlPlane) {
		modes[config.PKIDir+"/etcd"] = 0o755
		modes[config.EtcdDir] = 0o700
		modes["/var/log/kubernetes"] = 0o700
	}
	data := []string{config.KubeletDir, "/var/lib/containerd", config.EtcdDir, "/var/lib/cni", "/var/log/kubernetes"}
	for _, path := range sorted(modes) {
		n.dirs[path] = n.Add(plan.Dir{Path: path, Mode: modes[path], Data: slices.Contains(data, path)})
	}
}
