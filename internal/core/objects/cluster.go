// SPDX-License-Identifier: Apache-2.0

package objects

import (
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
)

//go:embed base.yaml
var baseYAML string

// Names of the add-ons that every cluster has. A user's add-on cannot use them.
const (
	Base = "slipway-base"
	DNS  = "slipway-dns"
)

// Params are the inputs of [Cluster].
type Params struct {
	DNSAddress   netip.Addr // Service address of the cluster DNS, which kubelets write to pods' resolv.conf
	Replicas     int        // of the cluster DNS
	Spread       bool       // the cluster has as many nodes as replicas, so no two replicas share a node
	Corefile     string
	CoreDNSImage string // the exact reference that was imported on the nodes, so that nothing is pulled

	// APIEndpoint, if valid, is the address of the API for CoreDNS: a control-plane node's own address, which the API server's
	// certificate includes. Without it, CoreDNS connects to the Service address, which answers only once kube-proxy has
	// programmed it. On a network that drops packets, a connection that is opened too early hangs for 30 s.
	APIEndpoint netip.AddrPort
}

// Cluster returns the add-ons that every cluster needs. They do not depend on each other.
func Cluster(p Params) ([]AddOn, error) {
	switch {
	case !p.DNSAddress.IsValid():
		return nil, errors.New("cluster objects: no address for the cluster DNS")
	case p.Replicas < 0:
		return nil, fmt.Errorf("cluster objects: %d replicas of the cluster DNS", p.Replicas)
	case p.CoreDNSImage == "":
		return nil, errors.New("cluster objects: no image for the cluster DNS")
	}
	base, err := Parse(Base, baseYAML)
	if err != nil {
		return nil, err
	}
	return []AddOn{base, {Name: DNS, Objects: dns(p)}}, nil
}

// Seeds returns the objects that pods need in the namespaces that every cluster has: the default service account, and the CA
// (PEM text) that pods trust. The controller manager creates them, too, but only some time after its start.
func Seeds(rootCA string) []Object {
	var out []Object
	for _, ns := range []string{"default", "kube-system"} {
		out = append(out,
			Object{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": map[string]any{"name": "default", "namespace": ns}},
			Object{
				"apiVersion": "v1", "kind": "ConfigMap",
				"metadata": map[string]any{
					"name": "kube-root-ca.crt", "namespace": ns,
					// The publisher replaces the object if this annotation is missing.
					"annotations": map[string]any{"kubernetes.io/description": "Trust this CA to verify the API server; service accounts get it with their tokens."},
				},
				"data": map[string]any{"ca.crt": rootCA},
			})
	}
	return out
}

type (
	m    = map[string]any
	list = []any
)

const (
	system  = "kube-system"
	rbac    = "rbac.authorization.k8s.io"
	dnsName = "coredns"
)

// dns returns the cluster DNS. Its names and the label k8s-app=kube-dns are those that tools expect.
func dns(p Params) []Object {
	return []Object{
		{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": m{"name": dnsName, "namespace": system}},
		dnsRole(),
		{
			"apiVersion": rbac + "/v1", "kind": "ClusterRoleBinding", "metadata": m{"name": "system:coredns"},
			"roleRef":  m{"apiGroup": rbac, "kind": "ClusterRole", "name": "system:coredns"},
			"subjects": list{m{"kind": "ServiceAccount", "name": dnsName, "namespace": system}},
		},
		{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": m{"name": dnsName, "namespace": system},
			"data": m{"Corefile": p.Corefile},
		},
		dnsService(p),
		dnsDeployment(p),
	}
}

func dnsRole() Object {
	read := list{"list", "watch"}
	return Object{
		"apiVersion": rbac + "/v1", "kind": "ClusterRole", "metadata": m{"name": "system:coredns"},
		"rules": list{
			m{"apiGroups": list{""}, "resources": list{"services", "pods", "namespaces"}, "verbs": read},
			m{"apiGroups": list{"discovery.k8s.io"}, "resources": list{"endpointslices"}, "verbs": read},
		},
	}
}

func dnsService(p Params) Object {
	return Object{
		"apiVersion": "v1", "kind": "Service",
		"metadata": m{
			"name": "kube-dns", "namespace": system,
			"labels":      m{"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS"},
			"annotations": m{"prometheus.io/port": "9153", "prometheus.io/scrape": "true"},
		},
		"spec": m{
			"selector":  m{"k8s-app": "kube-dns"},
			"clusterIP": p.DNSAddress.String(),
			"ports": list{
				m{"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53},
				m{"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": 53},
				m{"name": "metrics", "port": 9153, "protocol": "TCP", "targetPort": 9153},
			},
		},
	}
}

func dnsDeployment(p Params) Object {
	labels := m{"k8s-app": "kube-dns"}
	return Object{
		"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": m{"name": dnsName, "namespace": system, "labels": m{"k8s-app": "kube-dns", "kubernetes.io/name": "CoreDNS"}},
		"spec": m{
			"replicas":             p.Replicas,
			"revisionHistoryLimit": 3,
			"selector":             m{"matchLabels": labels},
			"strategy":             m{"type": "RollingUpdate", "rollingUpdate": rolling(p)},
			"template":             m{"metadata": m{"labels": labels}, "spec": dnsPod(p)},
		},
	}
}

// rolling starts the new replica first if there is only one, so that DNS is never interrupted. If no two replicas may share
// a node, there may be no node for an additional one.
func rolling(p Params) m {
	if p.Spread && p.Replicas > 1 {
		return m{"maxUnavailable": 1, "maxSurge": 0}
	}
	return m{"maxUnavailable": 0, "maxSurge": 1}
}

func dnsPod(p Params) m {
	pod := m{
		"serviceAccountName": dnsName,
		"priorityClassName":  "system-cluster-critical",
		"dnsPolicy":          "Default", // its upstream servers are those of the node
		"nodeSelector":       m{"kubernetes.io/os": "linux"},
		"tolerations": list{
			m{"key": "CriticalAddonsOnly", "operator": "Exists"},
			m{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"},
		},
		"containers": list{dnsContainer(p)},
		"volumes": list{
			m{"name": "config", "configMap": m{"name": dnsName, "items": list{m{"key": "Corefile", "path": "Corefile"}}}},
		},
	}
	switch {
	case p.Replicas > 1 && p.Spread:
		// Replicas that start while there is only one node would stay there and fail with it. They wait for other nodes instead.
		pod["affinity"] = m{"podAntiAffinity": m{"requiredDuringSchedulingIgnoredDuringExecution": list{m{
			"topologyKey": "kubernetes.io/hostname", "labelSelector": m{"matchLabels": m{"k8s-app": "kube-dns"}},
		}}}}
	case p.Replicas > 1:
		pod["topologySpreadConstraints"] = list{m{
			"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
			"labelSelector": m{"matchLabels": m{"k8s-app": "kube-dns"}}, "matchLabelKeys": list{"pod-template-hash"},
		}}
	}
	return pod
}

func dnsContainer(p Params) m {
	c := m{
		"name": dnsName, "image": p.CoreDNSImage, "imagePullPolicy": "IfNotPresent",
		"args": list{"-conf", "/etc/coredns/Corefile"},
		"resources": m{
			"requests": m{"cpu": "100m", "memory": "70Mi"}, // kubeadm's figures
			"limits":   m{"memory": "170Mi"},
		},
		"securityContext": m{
			"allowPrivilegeEscalation": false,
			"capabilities":             m{"add": list{"NET_BIND_SERVICE"}, "drop": list{"ALL"}},
			"readOnlyRootFilesystem":   true,
		},
		"volumeMounts": list{m{"name": "config", "mountPath": "/etc/coredns", "readOnly": true}},
		"ports": list{
			m{"name": "dns", "containerPort": 53, "protocol": "UDP"},
			m{"name": "dns-tcp", "containerPort": 53, "protocol": "TCP"},
			m{"name": "metrics", "containerPort": 9153, "protocol": "TCP"},
		},
		// The kubelet probes readiness when a container starts and then once per period, which is at least one second.
		"readinessProbe": m{"httpGet": m{"path": "/ready", "port": 8181}, "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 5},
		"livenessProbe": m{
			"httpGet":             m{"path": "/health", "port": 8080},
			"initialDelaySeconds": 30, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 5,
		},
	}
	if p.APIEndpoint.IsValid() {
		c["env"] = list{
			m{"name": "KUBERNETES_SERVICE_HOST", "value": p.APIEndpoint.Addr().String()},
			m{"name": "KUBERNETES_SERVICE_PORT", "value": strconv.Itoa(int(p.APIEndpoint.Port()))},
		}
	}
	return c
}
