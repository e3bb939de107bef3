// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"fmt"
	"net/netip"
	"path"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// rolling adds a component of the control plane, which is restarted on one machine at a time.
func (n *node) rolling(name string, c spec.Component, u plan.Unit, p pod, needs ...plan.Ref) plan.Ref {
	return n.Rolling(n.component(name, c, u, p, needs...))
}

// etcd needs a permit to start, which says whether it bootstraps a cluster or joins one. It starts first: everything waits
// for the API server, and the API server for etcd. Its data is created once: the mark is written when etcd has been ready
// for the first time, before the API server can write anything, and from then on etcd does not start without its data.
// Until then, a bootstrapping etcd starts with an empty directory each time: an etcd that dies between creating its log
// and its first entry never elects a leader again.
func (n *node) etcd() plan.Ref {
	c := n.cfg.Cluster.Etcd
	dir := flag(c, "data-dir", config.EtcdDir)
	needs := append(n.refs("etcd-server", "etcd-peer", "etcd-ca", "etcd-healthcheck-client"), n.dirs[config.EtcdDir])
	if dir != config.EtcdDir {
		needs = append(needs, n.Add(plan.Dir{Path: dir, Mode: 0o700, Data: true}, n.dirs[config.EtcdDir]))
	}
	needs = append(needs, n.Add(plan.Precondition{
		Name: "etcd-permit", Provider: "init, or the control plane that adds this machine's etcd as a member",
		Ready: plan.Probe{Kind: plan.ProbeFile, Path: config.EtcdPermit},
	}))
	unit := n.rolling("etcd", c, plan.Unit{
		EnvFile:   config.EtcdPermit,
		Inputs:    n.refs("etcd-ca"),
		Ready:     etcdProbe(c),
		DataGuard: plan.DataGuard{Mark: config.EtcdMark, Data: dir + "/member", FreshStart: config.CreatePermit},
		OOMScore:  -997,
		// It transfers leadership at once, and then waits for watches that do not end. Acknowledged writes are on the disk.
		StopTimeout: 2 * time.Second,
	}, pod{
		image: n.cfg.Cluster.EtcdImage, cpu: "100m", live: "/livez", guard: true, files: []string{config.SlipwayBinary},
		dirs: []mount{{config.PKIDir + "/etcd", false}, {dir, true}, {path.Dir(config.EtcdMark), false}},
	}, needs...)
	voter := n.Add(plan.Precondition{
		Name: "etcd-voter", Provider: "the control plane, which promotes this machine's etcd when it has caught up",
		Ready: plan.Probe{Kind: plan.ProbeFile, Path: config.EtcdVoter},
	})
	n.voter = voter
	return n.Add(plan.File{Path: config.EtcdMark, Mode: 0o600, Content: dir + " has held the data of cluster " + n.cfg.Cluster.Name + ".\n"}, unit, voter)
}

// controlPlane adds the API server and its two clients. The clients start after the API server has bootstrapped RBAC:
// before that it rejects them, and they retry only after seconds.
func (n *node) controlPlane(etcd plan.Ref) {
	api := n.apiServer(etcd)

	kcm := n.cfg.Cluster.ControllerManager
	last := n.rolling("kube-controller-manager", kcm, plan.Unit{
		Ready:    health(kcm, "10257"),
		Inputs:   append(n.refs("ca", "service-account"), n.confs[config.ControllerManagerConf]),
		OOMScore: -997,
	}, pod{
		image: n.cfg.Cluster.KubeImage, cpu: "100m", live: "/healthz", dirs: []mount{{config.PKIDir, false}},
	}, append(n.refs("ca", "service-account", "front-proxy-ca", "controller-manager-server"), n.confs[config.ControllerManagerConf], api)...)

	sched := n.cfg.Cluster.Scheduler
	conf := n.file(config.SchedulerFile, 0o600, yamlText(sched.Config))
	needs := append(n.refs("ca", "scheduler-server"), n.confs[config.SchedulerConf], conf, api)
	if n.asPods() { // one manifest at a time
		needs = append(needs, last)
	}
	n.rolling("kube-scheduler", sched, plan.Unit{
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
	return n.rolling("kube-apiserver", n.cfg.Cluster.APIServer, plan.Unit{
		// readyz includes the bootstrap of RBAC.
		Ready:    plan.Probe{Kind: plan.ProbeHTTP, URL: n.apiURL() + "/readyz", CA: config.PKIDir + "/ca.crt"},
		Inputs:   append(n.refs("ca", "etcd-ca", "service-account"), audit, encryption),
		OOMScore: -997,
		// After SIGTERM it accepts no requests, and its watches do not end: a longer timeout is only a longer outage.
		StopTimeout: 2 * time.Second,
	}, pod{
		image: n.cfg.Cluster.KubeImage, cpu: "250m", live: n.apiLive(), rights: []string{"NET_BIND_SERVICE"}, dirs: []mount{{config.PKIDir, false}},
	}, append(needs, audit, auth, encryption, n.dirs["/var/log/kubernetes"], etcd)...)
}

// apiLive excludes etcd: a restart of the API server does not repair that. It is empty where anonymous clients may not
// read health paths.
func (n *node) apiLive() string {
	if flag(n.cfg.Cluster.APIServer, "authentication-config", "") != config.AuthenticationFile {
		return ""
	}
	return "/livez?exclude=etcd"
}

// auditPolicy logs who changed what and who read a Secret, without bodies, and omits the frequent requests of the
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

// authentication allows anonymous requests to health paths only.
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

// The probes follow the configuration: if the user changes a port, the probe uses it.

// health is the authenticated health probe of a component that serves https with a certificate of the cluster CA.
func health(c spec.Component, port string) plan.Probe {
	return plan.Probe{
		Kind: plan.ProbeHTTP, URL: "https://" + reach(flag(c, "bind-address", "127.0.0.1")) + ":" + flag(c, "secure-port", port) + "/healthz",
		CA: config.ClusterCA + ".crt",
	}
}

// etcdProbe queries the first metrics URL, or the client URL if there is none.
func etcdProbe(c spec.Component) plan.Probe {
	url, _, _ := strings.Cut(flag(c, "listen-metrics-urls", "https://127.0.0.1:2379"), ",")
	p := plan.Probe{Kind: plan.ProbeHTTP, URL: url + "/readyz"}
	if strings.HasPrefix(url, "https:") {
		p.CA, p.Cert, p.Key = config.EtcdCA+".crt", config.EtcdHealthcheck+".crt", config.EtcdHealthcheck+".key"
	}
	return p
}

func kubeletProbe(c spec.Component) plan.Probe {
	port := setting(c, "healthzPort", "10248")
	if port == "0" { // the user has disabled the endpoint
		return plan.Probe{}
	}
	return plan.Probe{Kind: plan.ProbeHTTP, URL: "http://" + reach(setting(c, "healthzBindAddress", "127.0.0.1")) + ":" + port + "/healthz"}
}

func proxyProbe(c spec.Component) plan.Probe {
	at := setting(c, "healthzBindAddress", "0.0.0.0:10256")
	if a, err := netip.ParseAddrPort(at); err == nil {
		at = fmt.Sprintf("%s:%d", reach(a.Addr().String()), a.Port())
	}
	return plan.Probe{Kind: plan.ProbeHTTP, URL: "http://" + at + "/healthz"}
}

// reach returns the host part of a URL for a server on this machine that listens on the address.
func reach(host string) string {
	switch a, err := netip.ParseAddr(host); {
	case err != nil:
		return host
	case a.IsUnspecified():
		return "127.0.0.1"
	case a.Is6():
		return "[" + host + "]"
	}
	return host
}

// setting returns a top-level scalar of the configuration file, or otherwise if it is not set.
func setting(c spec.Component, key, otherwise string) string {
	switch v := c.Config[key].(type) {
	case nil:
		return otherwise
	case string:
		if v == "" {
			return otherwise
		}
		return v
	default:
		return fmt.Sprint(v)
	}
}
