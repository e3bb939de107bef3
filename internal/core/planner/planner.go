// SPDX-License-Identifier: Apache-2.0

// Package planner turns a node's configuration into its plan: which items there are, and what needs what. It decides the
// order and never values (package config does that), and does no I/O.
//
// Read [For] first: it lists everything that a node has.
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

// node is the state of one plan while it is built.
type node struct {
	plan.Builder
	cfg        config.Node
	components Components

	dirs  map[string]plan.Ref // by path
	bins  map[string]plan.Ref // by name
	certs map[string]plan.Ref // by Want name
	confs map[string]plan.Ref // kubeconfigs by path

	prepared   []plan.Ref // the preparation of the operating system
	osModules  plan.Ref
	osPackages []plan.Ref
	osAccounts []plan.Ref
	limited    plan.Ref // systemd's limits of units; zero: none are set
	timeSync   plan.Ref // zero: not required

	imageRefs map[string]plan.Ref // by image
	assets    map[string]plan.Ref // the user's files by path

	podRules plan.Ref
	voter    plan.Ref // of a control plane: its etcd is a voting member
}

// For returns the plan of one node. It fails when the bundle lacks a component.
func For(cfg config.Node, components Components) (plan.Plan, error) {
	n := &node{
		cfg: cfg, components: components,
		dirs: map[string]plan.Ref{}, bins: map[string]plan.Ref{}, certs: map[string]plan.Ref{}, confs: map[string]plan.Ref{},
		imageRefs: map[string]plan.Ref{}, assets: map[string]plan.Ref{},
	}
	if n.has(config.RoleControlPlane) != cfg.Cluster.RunsEtcd(cfg.Pool) {
		return plan.Plan{}, fmt.Errorf("plan %s: etcd without a control plane on the same machine is not supported yet: remove the role etcd", cfg.Name)
	}
	if err := n.artifacts(); err != nil {
		return plan.Plan{}, err
	}
	n.directories()
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
		n.kubelet(runtime, images[:1]) // the node is not Ready before the rest is imported
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

// unit adds a component's process. It restarts when its flags, its inputs or its binary change, and at no other time.
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

// file adds a file. Its change restarts what lists it in Inputs.
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

// flag returns the first value of a flag, or otherwise if it is not set.
func flag(c spec.Component, name, otherwise string) string {
	if values := c.Flags[name]; len(values) > 0 {
		return values[0]
	}
	return otherwise
}

// Certificates are valid for a year and are renewed after two thirds of it (pki.RenewAt); CAs are valid for ten years.
const (
	leafLife = 365 * 24 * time.Hour
	caLife   = 10 * leafLife
	// A worker's control planes renew its certificates while it is connected; those of a removed worker expire soon.
	workerLife = 30 * 24 * time.Hour
)

// Directories of the components on a node.
const (
	BinDir = "/opt/slipway/bin"
	CNIDir = "/opt/cni/bin"
)

func binPath(name string) string { return BinDir + "/" + name }

// artifacts adds the binaries that this node's roles need. kube is one multi-call binary under several names: one file, and
// one set of text pages in memory.
func (n *node) artifacts() error {
	bins := map[string]string{
		"containerd": "containerd", "containerd-shim-runc-v2": "containerd-shim-runc-v2", "ctr": "ctr", "runc": "runc",
		"kubelet": "kube", "kubectl": "kubectl",
	}
	if !n.asPods() { // otherwise they are in their images
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

// later delays what a worker needs only after its container runtime has started: each file is read once to verify it, and
// reading all at once would delay what everything else waits for.
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

// directories adds the directories of the components.
func (n *node) directories() {
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
