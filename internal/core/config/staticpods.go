// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strconv"
)

// files takes the user's own files and static pods as they are.
func (m *maker) files() {
	s, c := m.spec, m.out
	c.StaticPods, c.FileAssets = s.StaticPods, s.FileAssets
	m.origin("staticPods", len(s.StaticPods) > 0, std(""))
	m.origin("fileAssets", len(s.FileAssets) > 0, std(""))
}

// HasOneOf tells whether the pool has one of the roles; none stand for all.
func (p Pool) HasOneOf(roles []string) bool {
	return len(roles) == 0 || slices.ContainsFunc(roles, func(r string) bool { return slices.Contains(p.Roles, r) })
}

func (p *printer) files(c Cluster) {
	pods, assets := c.Origins["staticPods"], c.Origins["fileAssets"]
	if len(c.StaticPods) == 0 {
		p.raw(1, "staticPods: [] "+pods.comment())
	} else {
		p.raw(1, "staticPods: "+pods.comment())
	}
	for _, pod := range c.StaticPods {
		p.raw(2, "- name: "+flow(pod.Name, false)+" "+pods.comment())
		p.value(3, "manifest", pod.Manifest, pods)
		p.ofRoles(pod.Roles, pods)
	}
	if len(c.FileAssets) == 0 {
		p.raw(1, "fileAssets: [] "+assets.comment())
	} else {
		p.raw(1, "fileAssets: "+assets.comment())
	}
	for _, f := range c.FileAssets {
		p.raw(2, "- path: "+flow(f.Path, false)+" "+assets.comment())
		p.value(3, "mode", octal(f.Mode), assets)
		p.value(3, "content", f.Content, assets)
		p.ofRoles(f.Roles, assets)
	}
}

func (p *printer) ofRoles(roles []string, o Origin) {
	if len(roles) > 0 {
		p.value(3, "roles", normal(roles), o)
	}
}

func octal(mode uint32) string { return "0" + strconv.FormatUint(uint64(mode), 8) }

// names of the user's own files and static pods, for why.
func (c Cluster) fileNames() (pods, assets []any) {
	for _, p := range c.StaticPods {
		pods = append(pods, p.Name)
	}
	for _, f := range c.FileAssets {
		assets = append(assets, f.Path)
	}
	return pods, assets
}
