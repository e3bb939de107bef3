// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// certificates adds the certificate table, each leaf after its CA. A node without the control plane has no CA keys: it
// requests its certificates from a remote signer, once it has joined and has the cluster's CA.
func (n *node) certificates() {
	wants := pki.Worker(n.pkiParams())
	if !n.has(config.RoleControlPlane) {
		for i := range wants {
			wants[i].Lifetime = workerLife
		}
	}
	if n.has(config.RoleControlPlane) {
		wants = append(pki.ControlPlane(n.pkiParams()), wants...)
	} else {
		for i := range wants {
			wants[i].SignerKey = ""
		}
		n.certs[pki.ClusterCA] = n.Add(plan.Precondition{
			Name: "cluster-ca", Provider: "the control plane, when this node has joined",
			Ready: plan.Probe{Kind: plan.ProbeFile, Path: config.ClusterCA + ".crt"},
		})
	}
	for _, w := range wants {
		needs := []plan.Ref{n.dirs[config.PKIDir]}
		if strings.Contains(w.KeyPath, "/etcd/") {
			needs = append(needs, n.dirs[config.PKIDir+"/etcd"])
		}
		if !n.timeSync.IsZero() {
			needs = append(needs, n.timeSync)
		}
		if w.Kind == pki.Leaf {
			needs = append(needs, n.certs[w.Signer])
		}
		n.certs[w.Name] = n.Add(plan.Cert{Want: w}, needs...)
	}
}

func (n *node) pkiParams() pki.Params {
	c := n.cfg.Cluster
	p := pki.Params{
		Dir: config.PKIDir, Cluster: c.Name, Node: n.cfg.Name, Address: n.cfg.Facts.Address,
		Permit: config.CreatePermit, ServiceIP: c.ServiceCIDR.Masked().Addr().Next(), Domain: c.ClusterDomain, CALife: caLife, LeafLife: leafLife,
	}
	sans := c.ExtraSANs
	if host := c.LoadBalancer.Host; !c.LoadBalancer.IsZero() && !slices.Contains(sans, host) {
		sans = append(slices.Clone(sans), host)
	}
	for _, san := range sans {
		if san.Addr.IsValid() {
			p.ExtraAddrs = append(p.ExtraAddrs, san.Addr)
		} else {
			p.ExtraNames = append(p.ExtraNames, san.Name)
		}
	}
	return p
}

// kubeconfigs adds one client configuration per identity. All name 127.0.0.1: on a control plane, this is its own API
// server, so that it depends on no balancer and never talks to an older one during an upgrade; on a worker, its balancer.
func (n *node) kubeconfigs() {
	add := func(path, cert, user string, embed bool) {
		w := n.want(cert)
		n.confs[path] = n.Add(plan.Kubeconfig{
			Path: path, Cluster: n.cfg.Cluster.Name, User: user, Server: n.apiURL(), CAFile: config.PKIDir + "/ca.crt",
			CertFile: w.CertPath, KeyFile: w.KeyPath, Embed: embed,
		}, n.certs[cert], n.dirs["/etc/kubernetes"])
	}
	add(config.KubeletConf, "kubelet", "system:node:"+n.cfg.Name, false)
	add(config.KubeProxyConf, "kube-proxy", "system:kube-proxy", false)
	if n.has(config.RoleControlPlane) {
		add(config.AdminConf, "admin", "kubernetes-admin", true)
		add(config.SuperAdminConf, "super-admin", "kubernetes-super-admin", true)
		add(config.ControlConf, "control", "slipway-control", false)
		add(config.ControllerManagerConf, "controller-manager", "system:kube-controller-manager", false)
		add(config.SchedulerConf, "scheduler", "system:kube-scheduler", false)
	}
}

func (n *node) apiURL() string {
	return "https://127.0.0.1:" + flag(n.cfg.Cluster.APIServer, "secure-port", "6443")
}

func (n *node) want(name string) pki.Want {
	e, ok := n.Find(n.certs[name])
	if !ok {
		panic("planner: no certificate " + name)
	}
	return e.Item.(plan.Cert).Want
}
