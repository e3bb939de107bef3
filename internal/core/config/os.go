// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/spec"
)

// OS is how the machines' operating systems are prepared, complete.
type OS struct {
	Modules  []Module
	Sysctls  map[string]Sysctl
	Packages map[string][]string // by package manager; nil: none anywhere
	Groups   []Group
	Users    []Account
	Folders  []Folder
	Limits   map[string]string
	TimeSync string
	Swap     string
	Hostname string
}

// Module is one of the kernel's. A lenient one may be missing: nobody has asked for it but Slipway.
type Module struct {
	Name    string
	Lenient bool
}

// Sysctl is a kernel setting; without a value the user has taken a default away. A lenient one may be missing.
type Sysctl struct {
	Value   string
	Unset   bool
	Lenient bool
	Origin  Origin
}

// Group of the operating system.
type Group struct {
	Name string
	GID  *int
}

// Account is a user of the operating system, complete but for what the machine chooses: number and first group.
type Account struct {
	Name        string
	UID         *int
	Group       string
	Groups      []string
	Home, Shell string
}

// Folder of a machine.
type Folder struct {
	Path         string
	Mode         uint32
	Owner, Group string
}

// Hook is a user's command before or after a phase.
type Hook struct {
	Name          string
	Before, After string
	Command       []string
	Roles         []string // none: all
	Timeout       time.Duration
	EveryBoot     bool
}

// The rules of a machine's clock, swap and name, and the phases that hooks name, in the words of the spec.
const (
	TimeRequire       = spec.TimeRequire
	SwapOff           = spec.SwapOff
	SwapRequire       = spec.SwapRequire
	HostnameNode      = spec.HostnameNode
	PhasePrepare      = spec.PhasePrepare
	PhaseFiles        = spec.PhaseFiles
	PhaseRuntime      = spec.PhaseRuntime
	PhaseControlPlane = spec.PhaseControlPlane
	PhaseNodeReady    = spec.PhaseNodeReady
)

// standardModules: containers' root file systems, traffic between pods of one bridge, and kube-proxy's rules.
func standardModules() []string { return []string{"br_netfilter", "nf_tables", "overlay"} }

// standardSysctls is what pods' traffic needs. The kubelet sets by itself what it needs.
func standardSysctls() map[string]Sysctl {
	const bridged = "a Service whose pod is on the same node"
	return map[string]Sysctl{
		"net.ipv4.ip_forward":                 {Value: "1", Origin: std("pods' traffic is routed")},
		"net.bridge.bridge-nf-call-iptables":  {Value: "1", Lenient: true, Origin: std(bridged)},
		"net.bridge.bridge-nf-call-ip6tables": {Value: "1", Lenient: true, Origin: std(bridged)},
	}
}

func (m *maker) os() {
	s, c := m.spec.OS, &m.out.OS
	m.modules(s.Modules)
	m.sysctls(s.Sysctls)
	c.Packages, c.Limits = s.Packages, s.Limits
	for _, g := range s.Groups {
		c.Groups = append(c.Groups, Group(g))
	}
	for _, u := range s.Users {
		out := Account(u)
		if out.Shell == "" {
			out.Shell = spec.DefaultShell
		}
		c.Users = append(c.Users, out)
	}
	for _, f := range s.Folders {
		c.Folders = append(c.Folders, Folder(f))
	}
	m.origin("os.packages", len(s.Packages) > 0, std(""))
	m.origin("os.groups", len(s.Groups) > 0, std(""))
	m.origin("os.users", len(s.Users) > 0, std(""))
	m.origin("os.folders", len(s.Folders) > 0, std(""))
	m.origin("os.limits", len(s.Limits) > 0, std("the distribution's"))
	c.TimeSync = choose(m, "os.timeSync", s.TimeSync, spec.TimeIgnore, std(""))
	c.Swap = choose(m, "os.swap", s.Swap, spec.SwapAllow, std("pods do not use it"))
	c.Hostname = choose(m, "os.hostname", s.Hostname, spec.HostnameKeep, std("the Node has the spec's name all the same"))
	for _, h := range m.spec.Hooks {
		out := Hook(h)
		if out.Timeout == 0 {
			out.Timeout = spec.DefaultHookTimeout
		}
		out.Roles = slices.Sorted(slices.Values(h.Roles))
		m.out.Hooks = append(m.out.Hooks, out)
	}
	m.origin("hooks", len(m.spec.Hooks) > 0, std(""))
}

func (m *maker) modules(said []string) {
	standard := standardModules()
	user := false
	for _, name := range standard {
		m.out.OS.Modules = append(m.out.OS.Modules, Module{Name: name, Lenient: true})
	}
	for _, name := range said {
		if !slices.Contains(standard, kernelName(name)) {
			m.out.OS.Modules = append(m.out.OS.Modules, Module{Name: name})
			user = true
		}
	}
	slices.SortFunc(m.out.OS.Modules, func(a, b Module) int { return strings.Compare(a.Name, b.Name) })
	m.origin("os.modules", user, std("what Kubernetes needs, where the kernel has it"))
}

// kernelName: the kernel does not tell dashes and underscores apart.
func kernelName(module string) string { return strings.ReplaceAll(module, "-", "_") }

func (m *maker) sysctls(said map[string][]string) {
	all := standardSysctls()
	for _, name := range slices.Sorted(maps.Keys(said)) {
		old, had := all[name]
		next := Sysctl{Unset: len(said[name]) == 0, Origin: Origin{From: User, Note: m.spec.Where(spec.Child("spec.os.sysctls", name))}}
		if !next.Unset {
			next.Value = strings.Join(strings.Fields(said[name][0]), " ")
		}
		if had && !next.Unset && old.Value == next.Value || !had && next.Unset {
			continue
		}
		all[name] = next
	}
	m.out.OS.Sysctls = all
	for name, s := range all {
		m.out.Origins[spec.Child("os.sysctls", name)] = s.Origin
	}
}

// ModuleNames of the configuration, as a spec lists them.
func (o OS) ModuleNames() []string {
	var names []string
	for _, m := range o.Modules {
		names = append(names, m.Name)
	}
	return names
}

func (h Hook) clone(text func(string) string) Hook {
	out := h
	out.Command = make([]string, len(h.Command))
	for i, word := range h.Command {
		out.Command[i] = text(word)
	}
	return out
}
