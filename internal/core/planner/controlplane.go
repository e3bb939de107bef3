// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"path"
	"time"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// Turn is what the control planes of a cluster exchange their running components by, one machine at a time.
const Turn = "control-plane"

// inTurn adds a component of the control plane.
func (n *node) inTurn(name string, c spec.Component, u plan.Unit, p pod, needs ...plan.Ref) plan.Ref {
	return n.InTurn(n.component(name, c, u, p, needs...), Turn)
}

// etcd never starts by itself: the permit says that it begins a cluster or joins one, and has to be given. It starts first of all: everything waits for the API server, and the API server for etcd. Its data is made once: the mark
// is written when it has been ready for the first time, before the API server can write anything, and from then on etcd does
// not start over an empty folder. Until then a founder's etcd begins anew at each start: an etcd that dies between making its log and
// its first entry never finds a leader again.
func (n *node) etcd() plan.Ref {
	c := n.cfg.Cluster.Etcd
	dir := flag(c, "data-dir", config.EtcdDir)
	needs := append(n.refs("etcd-server", "etcd-peer", "etcd-ca", "etcd-healthcheck-client"), n.dirs[config.EtcdDir])
	if dir != config.EtcdDir {
		needs = append(needs, n.Add(plan.Dir{Path: dir, Mode: 0o700, Data: true}, n.dirs[config.EtcdDir]))
	}
	needs = append(needs, n.Add(plan.Precondition{
		Name: "etcd-permit", Provider: "init, or the control plane that lets this machine's etcd join",
		Ready: plan.Probe{Kind: plan.ProbeFile, Path: config.EtcdPermit},
	}))
	unit := n.inTurn("etcd", c, plan.Unit{
		EnvFile:   config.EtcdPermit,
		Inputs:    n.refs("etcd-ca"),
		Ready:     etcdProbe(c),
		DataGuard: plan.DataGuard{Mark: config.EtcdMark, Data: dir + "/member", FreshStart: config.CreatePermit},
		OOMScore:  -997,
		// It hands the lead over at once, and then waits for watches that never end by themselves. What it has acknowledged is on the disk.
		StopTimeout: 2 * time.Second,
	}, pod{
		image: n.cfg.Cluster.EtcdImage, cpu: "100m", live: "/livez", guard: true, files: []string{config.SlipwayBinary},
		folders: []mount{{config.PKIDir + "/etcd", false}, {dir, true}, {path.Dir(config.EtcdMark), false}},
	}, needs...)
	voter := n.Add(plan.Precondition{
		Name: "etcd-voter", Provider: "the control plane, which promotes this machine's etcd when it has caught up",
		Ready: plan.Probe{Kind: plan.ProbeFile, Path: config.EtcdVoter},
	})
	n.voter = voter
	return n.Add(plan.File{Path: config.EtcdMark, Mode: 0o600, Content: dir + " has held the data of cluster " + n.cfg.Cluster.Name + ".\n"}, unit, voter)
}

// controlPlane adds the API server and its two clients. The clients start when the API server has bootstrapped RBAC: sooner
// they would be refused, and try again only seconds later.
func (n *node) controlPlane(etcd plan.Ref) {
	api := n.apiServer(etcd)

	kcm := n.cfg.Cluster.ControllerManager
	last := n.inTurn("kube-controller-manager", kcm, plan.Unit{
		Ready:    health(kcm, "10257"),
		Inputs:   append(n.refs("ca", "service-account"), n.confs[config.ControllerManagerConf]),
		OOMScore: -997,
	}, pod{
		image: n.cfg.Cluster.KubeImage, cpu: "100m", live: "/healthz", folders: []mount{{config.PKIDir, false}},
	}, append(n.refs("ca", "service-account", "front-proxy-ca", "controller-manager-server"), n.confs[config.ControllerManagerConf], api)...)

	sched := n.cfg.Cluster.Scheduler
	conf := n.file(config.SchedulerFile, 0o600, yamlText(sched.Config))
	needs := append(n.refs("ca", "scheduler-server"), n.confs[config.SchedulerConf], conf, api)
	if n.asPods() { // one manifest at a time
		needs = append(needs, last)
	}
	n.inTurn("kube-scheduler", sched, plan.Unit{
		Ready:    health(sched, "10259"),
		Inputs:   append(n.refs("ca"), conf, n.confs[config.SchedulerConf]),
		OOMScore: -997,
	}, pod{image: n.cfg.Cluster.KubeImage, cpu: "50m", live: "/healthz", files: []string{config.SchedulerConf}}, needs...)
}

func (n *node) apiServer(etcd plan.Ref) plan.Ref {
	audit := n.file(config.AuditPolicyFile, 0o600, auditPolicy)
	auth := n.file(config.AuthenticationFile, 0o600, authentication)
	encryption := n.Add(plan.File{
		Path: config.EncryptionFile, Mode: 0o600, Content: encryptionConfig,
		Fill: map[string]string{"{{encryption-key}}": n.want("encryption-key").KeyPath},
	}, n.certs["encryption-key"])

	needs := n.refs("ca", "front-proxy-ca", "etcd-ca", "service-account", "apiserver", "apiserver-kubelet-client", "front-proxy-client",
		"apiserver-etcd-client")
	return n.inTurn("kube-apiserver", n.cfg.Cluster.APIServer, plan.Unit{
		// readyz holds the bootstrap of RBAC too.
		Ready:    plan.Probe{Kind: plan.ProbeHTTP, URL: n.apiURL() + "/readyz", CA: config.PKIDir + "/ca.crt"},
		Inputs:   append(n.refs("ca", "etcd-ca", "service-account"), audit, encryption),
		OOMScore: -997,
		// From SIGTERM on it takes no new request, and its watches never end by themselves: waiting long is only a longer outage.
		StopTimeout: 2 * time.Second,
	}, pod{
		image: n.cfg.Cluster.KubeImage, cpu: "250m", live: n.apiLive(), rights: []string{"NET_BIND_SERVICE"}, folders: []mount{{config.PKIDir, false}},
	}, append(needs, audit, auth, encryption, n.dirs["/var/log/kubernetes"], etcd)...)
}

// apiLive leaves etcd out: a restart of the API server does not bring that back. Where strangers may not ask for health, nothing is asked.
func (n *node) apiLive() string {
	if flag(n.cfg.Cluster.APIServer, "authentication-config", "") != config.AuthenticationFile {
		return ""
	}
	return "/livez?exclude=etcd"
}

// auditPolicy logs who changed what and who read a Secret, bodies of nothing, and leaves out the endless noise of the
// components.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: ["/healthz*", "/livez*", "/readyz*", "/version", "/openapi/*"]
- level: Metadata
  resources:
  - {group: "", resources: [secrets, serviceaccounts/token]}
  - {group: "authentication.k8s.io", resources: [tokenreviews]}
- level: None
  users: ["system:kube-scheduler", "system:kube-controller-manager", "system:apiserver"]
  verbs: [get, list, watch]
- level: None
  userGroups: ["system:nodes", "system:serviceaccounts:kube-system"]
  verbs: [get, list, watch]
- level: None
  resources:
  - {group: "", resources: [events]}
  - {group: "events.k8s.io", resources: [events]}
  - {group: "coordination.k8s.io", resources: [leases]}
- level: Metadata
`

// authentication lets strangers ask for health and nothing else.
const authentication = `apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions:
  - path: /livez
  - path: /readyz
  - path: /healthz
`

const encryptionConfig = `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - secretbox:
      keys:
      - {name: key1, secret: "{{encryption-key}}"}
  - identity: {}
`
