// SPDX-License-Identifier: Apache-2.0

// Package planner turns a node's complete configuration into its plan: which items, and what needs what. One file per
// concern. It decides order, never values (package config does), and does nothing.
//
// Read [For] first; it is the table of contents of a node.
//
//	config.Node{Name: "dev-main-0", Pool: {Roles: [control-plane worker]}}  →  plan.Plan of some seventy entries
package planner

import (
	"fmt"
	"slices"
	"time"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// Components are the digests ("sha256:…") of the bundle's binaries and image archives by name.
type Components map[string]string

// node is what the files of this package share while one plan is built.
type node struct {
	plan.Builder
	cfg        config.Node
	components Components

	dirs  map[string]plan.Ref // by path
	bins  map[string]plan.Ref // by name
	certs map[string]plan.Ref // by Want name
	confs map[string]plan.Ref // kubeconfigs by path

	prepared   []plan.Ref // all of the operating system's preparation
	osModules  plan.Ref
	osPackages []plan.Ref
	osAccounts []plan.Ref
	limited    plan.Ref // systemd's limits of units; zero where nobody sets any
	timeSync   plan.Ref // zero where nobody asks for it

	imageRefs map[string]plan.Ref // by image
	assets    map[string]plan.Ref // the user's files by path

	podRules plan.Ref
	voter    plan.Ref // of a control plane: its etcd counts
}

// For returns the plan of one node. It fails when the bundle lacks a component.
func For(cfg config.Node, components Components) (plan.Plan, error) {
	n := &node{
		cfg: cfg, components: components,
		dirs: map[string]plan.Ref{}, bins: map[string]plan.Ref{}, certs: map[string]plan.Ref{}, confs: map[string]plan.Ref{},
		imageRefs: map[string]plan.Ref{}, assets: map[string]plan.Ref{},
	}
	if n.has(config.RoleControlPlane) != cfg.Cluster.RunsEtcd(cfg.Pool) {
		return plan.Plan{}, fmt.Errorf("plan %s: etcd apart from the control plane is not supported yet: leave the role etcd away", cfg.Name)
	}
	if err := n.artifacts(); err != nil {
		return plan.Plan{}, err
	}
	n.folders()
	n.os()
	n.fileAssets()
	n.certificates()
	n.kubeconfigs()

	runtime := n.containerd()
	images, err := n.images(runtime)
	if err != nil {
		return plan.Plan{}, err
	}
	switch {
	case n.has(config.RoleControlPlane) && n.asPods(): // the kubelet runs the rest
		n.kubelet(runtime, images)
		n.controlPlane(n.etcd())
	case n.has(config.RoleControlPlane):
		n.controlPlane(n.etcd())
		n.kubelet(runtime, images)
	default:
		n.balancer()
		n.cni(images...)
		n.kubelet(runtime, images[:1]) // it is not Ready before the rest is there
	}
	proxy := n.kubeProxy()
	n.staticPods()
	if n.has(config.RoleControlPlane) && n.joins() {
		n.cni(append(images, proxy)...)
	}
	n.userUnits()
	return n.hooked(n.Plan(cfg.Cluster.Name, cfg.Name, cfg.Cluster.Release)), nil
}

func (n *node) has(role string) bool { return slices.Contains(n.cfg.Pool.Roles, role) }

// unit adds a component's process. Its flags are written in full, sorted, so that an edit restarts it and nothing else does;
// a new binary does, too.
func (n *node) unit(name string, c spec.Component, u plan.Unit, needs ...plan.Ref) plan.Ref {
	u.Name = name
	u.Args = append([]string{binPath(name)}, arguments(c)...)
	for _, k := range sorted(c.Env) {
		u.Env = append(u.Env, k+"="+c.Env[k])
	}
	assets := n.assetsOf(c)
	u.Inputs = append(append(u.Inputs, n.bins[name]), assets...)
	needs = append(needs, assets...)
	if !n.limited.IsZero() {
		needs = append(needs, n.limited)
	}
	return n.Add(u, append(needs, n.bins[name])...)
}

// file adds a file whose change restarts what lists it in Inputs.
func (n *node) file(path string, mode uint32, content string) plan.Ref {
	return n.Add(plan.File{Path: path, Mode: mode, Content: content})
}

func (n *node) refs(names ...string) []plan.Ref {
	out := make([]plan.Ref, 0, len(names))
	for _, name := range names {
		ref, ok := n.certs[name]
		if !ok {
			panic(fmt.Sprintf("planner: no certificate %q", name))
		}
		out = append(out, ref)
	}
	return out
}

func arguments(c spec.Component) []string {
	var args []string
	for _, name := range sorted(c.Flags) {
		for _, v := range c.Flags[name] {
			args = append(args, "--"+name+"="+v)
		}
	}
	return args
}

func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// flag is the value of a flag that has one value, or otherwise when it is not set.
func flag(c spec.Component, name, otherwise string) string {
	if values := c.Flags[name]; len(values) > 0 {
		return values[0]
	}
	return otherwise
}

// A year of life, renewed at two thirds (pki.RenewAt); CAs live ten.
const (
	leafLife = 365 * 24 * time.Hour
	caLife   = 10 * leafLife
	// A worker's certificates are renewed by its control planes while it is in touch; one that was taken out is harmless soon.
	workerLife = 30 * 24 * time.Hour
)
