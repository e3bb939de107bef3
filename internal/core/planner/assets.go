// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// fileAssets adds the user's own files.
func (n *node) fileAssets() {
	for _, f := range n.cfg.Cluster.FileAssets {
		if n.cfg.Pool.HasOneOf(f.Roles) {
			n.assets[f.Path] = n.Add(plan.File{Path: f.Path, Mode: uint32(f.Mode), Content: f.Content, UserOwned: true})
		}
	}
}

// staticPods adds the user's own static pods. The kubelet takes them up whenever it runs.
func (n *node) staticPods() {
	for _, p := range n.cfg.Cluster.StaticPods {
		if n.cfg.Pool.HasOneOf(p.Roles) {
			n.Add(plan.StaticPod{Name: p.Name, Path: config.ManifestsDir + "/" + p.Name + ".yaml", Manifest: p.Manifest}, n.dirs[config.ManifestsDir])
		}
	}
}

// assetsOf are the user's files that a component's flags name: it starts after them, and another content means another process.
func (n *node) assetsOf(c spec.Component) []plan.Ref {
	var refs []plan.Ref
	for _, name := range sorted(c.Flags) {
		if !namesFile(name) {
			continue
		}
		for _, v := range c.Flags[name] {
			for _, path := range strings.Split(v, ",") {
				if ref, ok := n.assets[path]; ok && !slices.Contains(refs, ref) {
					refs = append(refs, ref)
				}
			}
		}
	}
	return refs
}
