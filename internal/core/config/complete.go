// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// maker builds one Cluster.
type maker struct {
	spec spec.Cluster
	out  *Cluster
}

// Complete applies the defaults of a release to a spec. The spec must be free of problems (see spec.Parse). The problems
// that Complete returns are what only the release can tell: unknown flags, fields and feature gates, and conflicts between
// what the user set and the defaults.
func Complete(s spec.Cluster, r catalog.Release) (Cluster, []spec.Problem) {
	c := Cluster{
		Name: s.Name, Release: r.Kubernetes, Minor: r.Minor(),
		PauseImage: r.ImageName("pause"), CoreDNSImage: r.ImageName("coredns"), KubeImage: r.ImageName("kube"), EtcdImage: r.ImageName("etcd"),
		Networking: s.Networking, ControlPlane: s.ControlPlane, FeatureGates: s.FeatureGates, AddOns: s.AddOns, OS: s.OS, StaticPods: s.StaticPods,
		Origins: map[string]Origin{},
	}
	m := &maker{spec: s, out: &c}
	m.user("metadata.name")
	m.origin("spec.kubernetesVersion", s.KubernetesVersion != "" && s.KubernetesVersion != catalog.Default().Minor(), std(""))
	complete(m, "spec.controlPlane.form", &c.Form, spec.HostUnits, std(""))
	m.origin("spec.controlPlane.extraSANs", len(s.ControlPlane.ExtraSANs) > 0, std(""))
	m.origin("spec.controlPlane.loadBalancer", !s.ControlPlane.LoadBalancer.IsZero(), std("none"))
	m.origin("spec.featureGates", len(s.FeatureGates) > 0, std(""))
	m.network()
	m.pools()
	m.units()
	m.os()
	m.hooksAndFiles()
	m.components(r)
	return c, m.conflicts(r)
}

// complete sets *v to its default unless the document sets it to something else, and records the origin.
func complete[T comparable](m *maker, path string, v *T, otherwise T, o Origin) {
	var zero T
	user := m.spec.IsSet(path) && *v != zero && *v != otherwise
	m.origin(path, user, o)
	if !user {
		*v = otherwise
	}
}

// origin records the user's position, or o.
func (m *maker) origin(path string, user bool, o Origin) {
	if user {
		m.user(path)
		return
	}
	m.out.Origins[path] = o
}

func (m *maker) user(path string) {
	m.out.Origins[path] = Origin{From: User, Note: m.spec.Where(path)}
}

func (m *maker) network() {
	c := m.out
	complete(m, "spec.networking.podCIDR", &c.PodCIDR, netip.MustParsePrefix(spec.DefaultPodCIDR), std(""))
	complete(m, "spec.networking.nodePodPrefix", &c.NodePodPrefix, spec.DefaultNodePodPrefix, std(""))
	complete(m, "spec.networking.serviceCIDR", &c.ServiceCIDR, netip.MustParsePrefix(spec.DefaultServiceCIDR), std(""))
	complete(m, "spec.networking.clusterDomain", &c.ClusterDomain, spec.DefaultClusterDomain, std(""))
	complete(m, "spec.networking.dnsAddress", &c.DNSAddress, spec.Nth(c.ServiceCIDR, spec.DNSIndex), from("networking.serviceCIDR"))
	if c.MTU != 0 { // otherwise it depends on the node
		m.user("spec.networking.mtu")
	}
}

func (m *maker) pools() {
	pools := m.spec.Pools
	if len(pools) == 0 {
		pools = []spec.Pool{{Name: spec.DefaultPool}}
	}
	index := 0
	for i, p := range pools {
		at := spec.Element("spec.pools", i)
		out := Pool{Pool: p}
		out.Count = spec.MachineCount(p)
		m.origin(at+".name", len(pools) > 1 || p.Name != spec.DefaultPool, std(""))
		m.roles(&out, at, len(pools))
		m.taints(&out, at)
		out.Replacement = cmp.Or(p.Replacement, spec.Approved)
		m.origin(at+".replacement", out.Replacement != spec.Approved, std(""))
		m.origin(at+".labels", len(p.Labels) > 0, std(""))
		m.origin(at+".machines", len(p.Machines) > 0, std(""))
		m.origin(at+".machineLabels", len(p.MachineLabels) > 0, std(""))
		if len(p.Machines) > 0 {
			m.origin(at+".count", false, from("machines"))
		} else {
			m.origin(at+".count", out.Count != 1, std(""))
		}
		out.Machines = nil
		for _, machine := range p.Machines {
			out.Nodes = append(out.Nodes, NodeName{Name: machine.Name, Address: machine.Address, Index: index, Labels: machine.Labels})
			machine.SSH = spec.SSH{} // how an operator reaches a machine is not part of the cluster
			out.Machines = append(out.Machines, machine)
			index++
		}
		for n := len(p.Machines); n < out.Count; n++ {
			name := spec.MachineName(m.spec.Name, p, n)
			out.Nodes = append(out.Nodes, NodeName{Name: name, Index: index, Labels: p.MachineLabels[name]})
			index++
		}
		m.out.Pools = append(m.out.Pools, out)
	}
}

func (m *maker) roles(p *Pool, at string, pools int) {
	standard, note := spec.DefaultRoles(pools), "everything on the only pool"
	if pools > 1 {
		note = ""
	}
	set := slices.Sorted(slices.Values(p.Roles))
	user := len(set) > 0 && !slices.Equal(set, standard)
	p.Roles = standard
	if user {
		p.Roles = set
	}
	m.origin(at+".roles", user, std(note))
}

func (m *maker) taints(p *Pool, at string) {
	var standard []spec.Taint
	origin := std("")
	if p.Has(RoleControlPlane) && !p.Has(RoleWorker) {
		standard = []spec.Taint{{Key: spec.TaintControlPlane, Effect: "NoSchedule"}}
		origin = from("the pool is not a worker")
	}
	user := m.spec.IsSet(at+".taints") && !slices.Equal(p.Taints, standard)
	if !user {
		p.Taints = standard
	}
	m.origin(at+".taints", user, origin)
}

func (m *maker) units() {
	m.out.Units = slices.SortedStableFunc(slices.Values(m.spec.Units), func(a, b spec.Unit) int { return cmp.Compare(a.Name, b.Name) })
	m.origin("spec.units", len(m.out.Units) > 0, std(""))
	for i, u := range m.out.Units {
		if len(u.Placed) > 0 {
			m.out.Origins[spec.Element("spec.units", i)+".placed"] = from("its rules")
		}
	}
}

// OptionalModule reports whether a kernel module may be missing: Slipway loads it by default, and not all kernels have it.
func OptionalModule(name string) bool { return slices.Contains(defaultModules(), kernelName(name)) }

// defaultModules: containers' root file systems, traffic between pods of one bridge, and kube-proxy's rules.
func defaultModules() []string { return []string{"br_netfilter", "nf_tables", "overlay"} }

// kernelName returns the kernel's spelling: it treats dashes and underscores alike.
func kernelName(module string) string { return strings.ReplaceAll(module, "-", "_") }

const bridgeSysctls = "net.bridge."

// OptionalSysctl reports whether a sysctl may be missing: Slipway sets it by default, and not all kernels have it.
func (c Cluster) OptionalSysctl(name string) bool {
	return strings.HasPrefix(name, bridgeSysctls) && c.Origins[spec.Child("spec.os.sysctls", name)].From == Default
}

func (m *maker) os() {
	c := &m.out.OS
	c.Modules = defaultModules()
	for _, name := range m.spec.OS.Modules {
		if !OptionalModule(name) {
			c.Modules = append(c.Modules, name)
		}
	}
	m.origin("spec.os.modules", len(c.Modules) > len(defaultModules()), std("what Kubernetes needs, where the kernel has it"))
	slices.Sort(c.Modules)
	m.sysctls()
	c.Users = slices.Clone(c.Users)
	for i := range c.Users {
		c.Users[i].Shell = cmp.Or(c.Users[i].Shell, spec.DefaultShell)
	}
	c.Directories = slices.Clone(c.Directories)
	for i := range c.Directories {
		c.Directories[i].Mode = cmp.Or(c.Directories[i].Mode, spec.DefaultDirectoryMode)
	}
	m.origin("spec.os.packages", len(c.Packages) > 0, std(""))
	m.origin("spec.os.groups", len(c.Groups) > 0, std(""))
	m.origin("spec.os.users", len(c.Users) > 0, std(""))
	m.origin("spec.os.directories", len(c.Directories) > 0, std(""))
	m.origin("spec.os.limits", len(c.Limits) > 0, std("the distribution's"))
	complete(m, "spec.os.timeSync", &c.TimeSync, spec.TimeIgnore, std(""))
	complete(m, "spec.os.swap", &c.Swap, spec.SwapAllow, std("pods do not use it"))
	complete(m, "spec.os.hostname", &c.Hostname, spec.HostnameKeep, std("the Node has the spec's name in any case"))
}

// sysctls: pods' traffic needs the defaults. The kubelet sets what it needs itself.
func (m *maker) sysctls() {
	const bridged = "a Service whose pod is on the same node"
	all := map[string]spec.Values{}
	for name, o := range map[string]Origin{
		"net.ipv4.ip_forward":                      std("pods' traffic is routed"),
		bridgeSysctls + "bridge-nf-call-iptables":  std(bridged),
		bridgeSysctls + "bridge-nf-call-ip6tables": std(bridged),
	} {
		all[name] = spec.Values{"1"}
		m.out.Origins[spec.Child("spec.os.sysctls", name)] = o
	}
	for name, values := range m.spec.OS.Sysctls {
		var next spec.Values
		if len(values) > 0 {
			next = spec.Values{strings.Join(strings.Fields(values[0]), " ")}
		}
		if old, had := all[name]; had && slices.Equal(old, next) || !had && next == nil {
			continue
		}
		all[name] = next
		m.user(spec.Child("spec.os.sysctls", name))
	}
	m.out.OS.Sysctls = all
}

func (m *maker) hooksAndFiles() {
	s, c := m.spec, m.out
	for _, h := range s.Hooks {
		h.Timeout = cmp.Or(h.Timeout, spec.DefaultHookTimeout)
		h.Roles = slices.Sorted(slices.Values(h.Roles))
		c.Hooks = append(c.Hooks, h)
	}
	for _, f := range s.FileAssets {
		f.Mode = cmp.Or(f.Mode, spec.DefaultAssetMode)
		c.FileAssets = append(c.FileAssets, f)
	}
	m.origin("spec.hooks", len(c.Hooks) > 0, std(""))
	m.origin("spec.addOns", len(c.AddOns) > 0, std(""))
	m.origin("spec.staticPods", len(c.StaticPods) > 0, std(""))
	m.origin("spec.fileAssets", len(c.FileAssets) > 0, std(""))
}

func (m *maker) components(r catalog.Release) {
	s, c := m.spec.Components, m.out
	c.Etcd = m.component("etcd", etcd(*c), s.Etcd)
	c.APIServer = m.component("apiserver", apiserver(*c), s.APIServer)
	c.ControllerManager = m.component("controllerManager", controllerManager(*c), s.ControllerManager)
	c.Scheduler = m.component("scheduler", scheduler(*c), s.Scheduler)
	c.Kubelet = m.component("kubelet", kubelet(*c, r), s.Kubelet)
	c.KubeProxy = m.component("kubeProxy", kubeProxy(*c), s.KubeProxy)
	c.Containerd = m.component("containerd", containerd(), s.Containerd)

	replicas, origin := 2, from("several machines")
	if len(c.AllNodes()) == 1 {
		replicas, origin = 1, from("a single machine")
	}
	c.CoreDNS = s.CoreDNS
	complete(m, "spec.components.coredns.replicas", &c.CoreDNS.Replicas, replicas, origin)
	complete(m, "spec.components.coredns.corefile", &c.CoreDNS.Corefile, strings.Replace(corefile, "DOMAIN", c.ClusterDomain, 1), from("networking.clusterDomain"))
}

// conflicts returns overrides that cannot work: in this release, or together with the settings that they leave.
func (m *maker) conflicts(r catalog.Release) []spec.Problem {
	s, c := m.spec, m.out
	problems := unknown(s, r)
	more := len(problems) >= enough
	if v := s.KubernetesVersion; v != "" && v != r.Minor() {
		problems = append(problems, s.Report("spec.kubernetesVersion", "", "%s is not release %s", v, r.Kubernetes))
	}
	const flags = "spec.components.apiserver.flags."
	if len(c.APIServer.Flags["anonymous-auth"]) > 0 && len(c.APIServer.Flags["authentication-config"]) > 0 {
		problems = append(problems, s.Report(flags+"anonymous-auth", "set authentication-config to null, or remove anonymous-auth",
			"the API server does not start with both this and authentication-config"))
	}
	if len(c.APIServer.Flags["authorization-config"]) > 0 && len(c.APIServer.Flags["authorization-mode"]) > 0 {
		problems = append(problems, s.Report(flags+"authorization-config", "set authorization-mode to null",
			"the API server does not start with both this and authorization-mode"))
	}
	if v := c.APIServer.Flags["bind-address"]; len(v) != 1 || v[0] != "0.0.0.0" && v[0] != "::" {
		problems = append(problems, s.Report(flags+"bind-address", "restrict access with a firewall",
			"the node's own components reach the API server at 127.0.0.1: only 0.0.0.0 and :: include it"))
	}
	for _, x := range components(&c.Components) {
		for _, field := range []string{"apiVersion", "kind"} {
			if at := "spec.components." + x.name + ".config." + field; x.Config != nil && c.Origins[at].From == User {
				problems = append(problems, s.Report(at, "remove it", "cannot be changed"))
			}
		}
	}
	spec.Sort(problems)
	if more {
		problems = append(problems, spec.Problem{File: s.File, Msg: "there may be more problems", Hint: "fix these first"})
	}
	return problems
}
