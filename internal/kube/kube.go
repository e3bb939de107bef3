// SPDX-License-Identifier: Apache-2.0

// Package kube talks to the Kubernetes API: it applies objects, approves the kubelets' serving certificates, elects a leader, keeps
// the cluster's records, drains nodes and reports the state of objects. It is the only package that imports client-go. It watches
// instead of polling, caches no objects, does not look at the machine, and deletes only objects that it has created and that are
// not wanted any more.
//
// Read [Client] and [Client.Apply] first. Functions that wait do so without limit while the API server cannot be reached, report
// the reason to a callback, and end with their context.
//
//	c, err := kube.Connect("/etc/kubernetes/super-admin.conf", log)
//	changed, err := c.Apply(ctx, addons, func(p kube.Progress) { … })
//	err = c.KeepNode(ctx, kube.Record{Name: "dev-main-0"}, func(reason string) { … }, func(what string) { … })
package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// manager is Slipway's field manager for server-side apply.
const manager = "slipway"

// Client is a connection to one API server. It is safe for concurrent use and connects at the first request.
type Client struct {
	dyn  dynamic.Interface
	rest rest.Interface // for paths that are not resources: /readyz, discovery
	log  *slog.Logger
	conf *rest.Config // conf and http are kept for Fenced and At
	http *http.Client

	mu    sync.Mutex // guards the field below
	kinds map[schema.GroupVersionKind]resource
}

// Connect returns a client for a kubeconfig. Client certificates that the kubeconfig names by path are read again when they are
// renewed. A nil log discards everything.
func Connect(kubeconfig string, log *slog.Logger) (*Client, error) {
	silenceKlog()
	conf, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", kubeconfig, err)
	}
	conf.QPS = -1 // the server has its own flow control; the default of 5 per second would be the slowest part of a start
	conf.UserAgent = manager
	conf.WarningHandler = rest.NoWarnings{}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	http, err := rest.HTTPClientFor(conf)
	if err != nil {
		return nil, fmt.Errorf("use kubeconfig %s: %w", kubeconfig, err)
	}
	c, err := newClient(conf, http, log)
	if err != nil {
		return nil, fmt.Errorf("use kubeconfig %s: %w", kubeconfig, err)
	}
	return c, nil
}

// At returns a client with the same identity for another API server of the cluster, such as "https://10.0.0.4:6443".
func (c *Client) At(server string) (*Client, error) {
	conf := rest.CopyConfig(c.conf)
	conf.Host = server
	http, err := rest.HTTPClientFor(conf)
	if err != nil {
		return nil, fmt.Errorf("use API server %s: %w", server, err)
	}
	other, err := newClient(conf, http, c.log)
	if err != nil {
		return nil, fmt.Errorf("use API server %s: %w", server, err)
	}
	return other, nil
}

// newClient makes both REST clients share one HTTP client, and so its connections and its fence.
func newClient(conf *rest.Config, http *http.Client, log *slog.Logger) (*Client, error) {
	dyn, err := dynamic.NewForConfigAndClient(conf, http)
	if err != nil {
		return nil, err
	}
	raw, err := rest.UnversionedRESTClientForConfigAndClient(dynamic.ConfigFor(conf), http)
	if err != nil {
		return nil, err
	}
	return &Client{dyn: dyn, rest: raw, log: log, conf: conf, http: http, kinds: map[schema.GroupVersionKind]resource{}}, nil
}

// silenceKlog discards client-go's own log: everything in it is also returned as an error.
var silenceKlog = sync.OnceFunc(func() { klog.SetLogger(logr.Discard()) })

// resource is the API resource of a kind.
type resource struct {
	name       string // plural, "configmaps"
	namespaced bool
}

// known has the resources of the kinds that add-ons usually consist of. It avoids discovery, which is slow while a server starts.
// A kind has the same resource in all versions of its group.
var known = map[string]map[string]resource{
	"": {
		"Namespace": {"namespaces", false}, "Node": {"nodes", false}, "ServiceAccount": {"serviceaccounts", true}, "ConfigMap": {"configmaps", true},
		"Secret": {"secrets", true}, "Service": {"services", true}, "Pod": {"pods", true}, "PersistentVolumeClaim": {"persistentvolumeclaims", true},
		"ResourceQuota": {"resourcequotas", true}, "LimitRange": {"limitranges", true}, "Event": {"events", true},
	},
	"apps":  {"Deployment": {"deployments", true}, "DaemonSet": {"daemonsets", true}, "StatefulSet": {"statefulsets", true}},
	"batch": {"Job": {"jobs", true}, "CronJob": {"cronjobs", true}},
	"rbac.authorization.k8s.io": {
		"ClusterRole": {"clusterroles", false}, "ClusterRoleBinding": {"clusterrolebindings", false},
		"Role": {"roles", true}, "RoleBinding": {"rolebindings", true},
	},
	"policy":                 {"PodDisruptionBudget": {"poddisruptionbudgets", true}},
	"networking.k8s.io":      {"NetworkPolicy": {"networkpolicies", true}, "Ingress": {"ingresses", true}, "IngressClass": {"ingressclasses", false}},
	"storage.k8s.io":         {"StorageClass": {"storageclasses", false}, "CSIDriver": {"csidrivers", false}},
	"scheduling.k8s.io":      {"PriorityClass": {"priorityclasses", false}},
	"apiextensions.k8s.io":   {"CustomResourceDefinition": {"customresourcedefinitions", false}},
	"apiregistration.k8s.io": {"APIService": {"apiservices", false}},
	"admissionregistration.k8s.io": {
		"MutatingWebhookConfiguration":     {"mutatingwebhookconfigurations", false},
		"ValidatingWebhookConfiguration":   {"validatingwebhookconfigurations", false},
		"ValidatingAdmissionPolicy":        {"validatingadmissionpolicies", false},
		"ValidatingAdmissionPolicyBinding": {"validatingadmissionpolicybindings", false},
	},
	"certificates.k8s.io": {"CertificateSigningRequest": {"certificatesigningrequests", false}},
}

var (
	leases      = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	pods        = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	nodes       = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	configMaps  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	events      = schema.GroupVersionResource{Version: "v1", Resource: "events"}
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	requests    = schema.GroupVersionResource{Group: "certificates.k8s.io", Version: "v1", Resource: "certificatesigningrequests"}
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

// resource returns the resource of a kind, from the table or from the server. If the server does not know the kind (yet), the
// error is an apierrors.IsNotFound.
func (c *Client) resource(ctx context.Context, gvk schema.GroupVersionKind) (resource, error) {
	if r, ok := known[gvk.Group][gvk.Kind]; ok {
		return r, nil
	}
	c.mu.Lock()
	r, ok := c.kinds[gvk]
	c.mu.Unlock()
	if ok {
		return r, nil
	}
	path := "/apis/" + gvk.GroupVersion().String()
	if gvk.Group == "" {
		path = "/api/" + gvk.Version
	}
	body, err := c.rest.Get().AbsPath(path).DoRaw(ctx)
	if err != nil {
		return resource{}, err
	}
	var served metav1.APIResourceList
	if err := json.Unmarshal(body, &served); err != nil {
		return resource{}, fmt.Errorf("read resources of %s: %w", gvk.GroupVersion(), err)
	}
	for _, s := range served.APIResources {
		if s.Kind == gvk.Kind && !strings.Contains(s.Name, "/") {
			r := resource{s.Name, s.Namespaced}
			c.mu.Lock()
			c.kinds[gvk] = r
			c.mu.Unlock()
			return r, nil
		}
	}
	return resource{}, apierrors.NewNotFound(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, "kind "+gvk.Kind)
}

// resourceInterface returns the interface for objects of a kind. The namespace of a namespaced kind defaults to "default".
func (c *Client) resourceInterface(ctx context.Context, gvk schema.GroupVersionKind, namespace string) (dynamic.ResourceInterface, error) {
	r, err := c.resource(ctx, gvk)
	if err != nil {
		return nil, err
	}
	in := c.dyn.Resource(gvk.GroupVersion().WithResource(r.name))
	switch {
	case !r.namespaced:
		return in, nil
	case namespace == "":
		namespace = metav1.NamespaceDefault
	}
	return in.Namespace(namespace), nil
}
