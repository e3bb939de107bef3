// SPDX-License-Identifier: Apache-2.0

package config

import (
	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// maker builds one Cluster.
type maker struct {
	spec spec.Cluster
	out  *Cluster
}

// Complete fills in everything that the user did not say, for the given release. The spec must be free of problems (see
// spec.Parse); what Complete adds to them are flags and gates that the release does not know, and conflicts between what the
// user said and what is there anyway.
func Complete(s spec.Cluster, r catalog.Release) (Cluster, []spec.Problem) {
	c := Cluster{
		Name: s.Name, Release: r.Kubernetes, Minor: r.Minor(),
		PauseImage: r.ImageName("pause"), CoreDNSImage: r.ImageName("coredns"), KubeImage: r.ImageName("kube"), EtcdImage: r.ImageName("etcd"),
		ExtraSANs: s.ExtraSANs, LoadBalancer: s.LoadBalancer, Gates: s.Gates, Origins: map[string]Origin{},
	}
	m := &maker{spec: s, out: &c}
	m.head()
	m.network()
	m.pools()
	m.units()
	m.coreDNS()
	m.os()
	m.files()
	c.Etcd = etcd(c).component(s.Etcd, "etcd", s)
	c.APIServer = apiserver(c, m.etcdServers()).component(s.APIServer, "apiserver", s)
	c.ControllerManager = controllerManager(c).component(s.ControllerManager, "controllerManager", s)
	c.Scheduler = scheduler(c).component(s.Scheduler, "scheduler", s)
	c.Kubelet = kubelet(c, r).component(s.Kubelet, "kubelet", s)
	c.KubeProxy = kubeProxy(c).component(s.KubeProxy, "kubeProxy", s)
	c.Containerd = containerd().component(s.Containerd, "containerd", s)
	return c, m.conflicts(r)
}

func (m *maker) head() {
	s, c := m.spec, m.out
	c.Origins["metadata.name"] = Origin{From: User, Note: s.Where("metadata.name")}
	m.origin("kubernetesVersion", s.Minor != "" && s.Minor != catalog.Default().Minor(), std(""))
	c.Form = choose(m, "controlPlane.form", s.Form, spec.HostUnits, std(""))
	m.origin("controlPlane.extraSANs", len(s.ExtraSANs) > 0, std(""))
	m.origin("controlPlane.loadBalancer", s.LoadBalancer != "", std("none"))
	m.origin("featureGates", len(s.Gates) > 0, std(""))
}

// conflicts finds overrides that cannot work: in this release, or together with what they override.
func (m *maker) conflicts(r catalog.Release) []spec.Problem {
	s, c := m.spec, m.out
	problems := unknown(s, r)
	more := len(problems) >= enough
	if s.Minor != "" && s.Minor != r.Minor() {
		problems = append(problems, s.Report("spec.kubernetesVersion", "", "%s is not release %s", s.Minor, r.Kubernetes))
	}
	const flags = "spec.components.apiserver.flags."
	if len(c.APIServer.Flags["anonymous-auth"].Values) > 0 && len(c.APIServer.Flags["authentication-config"].Values) > 0 {
		problems = append(problems, s.Report(flags+"anonymous-auth", "set authentication-config to null, or leave anonymous-auth away",
			"the API server does not start with both this and authentication-config"))
	}
	if len(c.APIServer.Flags["authorization-config"].Values) > 0 && len(c.APIServer.Flags["authorization-mode"].Values) > 0 {
		problems = append(problems, s.Report(flags+"authorization-config", "set authorization-mode to null",
			"the API server does not start with both this and authorization-mode"))
	}
	if v := c.APIServer.Flags["bind-address"].Values; len(v) != 1 || v[0] != "0.0.0.0" && v[0] != "::" {
		problems = append(problems, s.Report(flags+"bind-address", "use extraSANs and a firewall to say who may come",
			"the node's own components reach the API server at 127.0.0.1: only 0.0.0.0 and :: include it"))
	}
	for _, x := range c.components() {
		for _, path := range []string{"apiVersion", "kind"} {
			if x.Config != nil && x.Origins[path].From == User {
				problems = append(problems, s.Report("spec.components."+x.name+".config."+path, "leave it away", "cannot be changed"))
			}
		}
	}
	spec.Sort(problems)
	if more {
		problems = append(problems, spec.Problem{File: s.File, Msg: "there may be more problems", Hint: "mend these first"})
	}
	return problems
}

// named is a component and its name in the spec.
type named struct {
	name string
	*Component
}

// components lists them in the order of the spec.
func (c *Cluster) components() []named {
	return []named{
		{"etcd", &c.Etcd},
		{"apiserver", &c.APIServer},
		{"controllerManager", &c.ControllerManager},
		{"scheduler", &c.Scheduler},
		{"kubelet", &c.Kubelet},
		{"kubeProxy", &c.KubeProxy},
		{"containerd", &c.Containerd},
	}
}
