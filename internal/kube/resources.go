// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// resource is where objects of a kind are found.
type resource struct {
	name       string // plural, "configmaps"
	namespaced bool
}

// known spares discovery, which is slow while a server starts, for the kinds that add-ons are made of. Kinds of one name have
// one plural in every group here; versions do not matter.
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

// resource finds the resource of a kind: in the table, or by asking the server. A kind that the server does not know (yet) is
// an apierrors.IsNotFound.
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
