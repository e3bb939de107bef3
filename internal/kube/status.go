// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Status is what people ask first about a cluster.
type Status struct {
	Nodes   []NodeStatus `json:"nodes"`
	Unready []PodStatus  `json:"unready"` // pods of kube-system that are not ready
}

// NodeStatus is one node. Reason is empty when it is ready.
type NodeStatus struct {
	Name    string `json:"name"`
	Ready   bool   `json:"ready"`
	Reason  string `json:"reason,omitempty"`
	Version string `json:"version"`
}

// PodStatus is one pod that is not ready, and why.
type PodStatus struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Reason    string `json:"reason"`
}

// Status asks once and does not wait.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var s Status
	found, err := c.dyn.Resource(nodes).List(ctx, metav1.ListOptions{})
	if err != nil {
		return Status{}, fmt.Errorf("list nodes: %w", err)
	}
	for i := range found.Items {
		o := &found.Items[i]
		ready, why := condition(o, "Ready")
		s.Nodes = append(s.Nodes, NodeStatus{o.GetName(), ready, why, str(o.Object, "status", "nodeInfo", "kubeletVersion")})
	}
	if found, err = c.dyn.Resource(pods).Namespace(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{}); err != nil {
		return Status{}, fmt.Errorf("list pods: %w", err)
	}
	for i := range found.Items {
		o := &found.Items[i]
		if ready, _ := condition(o, "Ready"); !ready && str(o.Object, "status", "phase") != "Succeeded" {
			s.Unready = append(s.Unready, PodStatus{o.GetNamespace(), o.GetName(), podReason(o)})
		}
	}
	return s, nil
}

// condition tells whether a condition of the object is true, and why not.
func condition(o *unstructured.Unstructured, name string) (ok bool, why string) {
	for _, c := range maps(o.Object, "status", "conditions") {
		if str(c, "type") != name {
			continue
		}
		if str(c, "status") == "True" {
			return true, ""
		}
		return false, joinReason(str(c, "reason"), str(c, "message"))
	}
	return false, "it has not said yet whether it is " + name
}

// podReason tells what a pod waits for: what its containers say is nearer to the cause than the pod's conditions.
func podReason(o *unstructured.Unstructured) string {
	for _, list := range []string{"initContainerStatuses", "containerStatuses"} {
		for _, s := range maps(o.Object, "status", list) {
			for _, state := range []string{"waiting", "terminated"} {
				why := joinReason(str(s, "state", state, "reason"), str(s, "state", state, "message"))
				if why != "" && str(s, "state", state, "reason") != "Completed" {
					return "container " + str(s, "name") + ": " + why
				}
			}
		}
	}
	if why := joinReason(str(o.Object, "status", "reason"), str(o.Object, "status", "message")); why != "" {
		return why
	}
	for _, name := range []string{"PodScheduled", "Initialized", "ContainersReady", "Ready"} {
		if ok, why := condition(o, name); !ok {
			return why
		}
	}
	return str(o.Object, "status", "phase")
}

func joinReason(reason, message string) string {
	if reason != "" && message != "" {
		return reason + ": " + message
	}
	return reason + message
}

func str(m map[string]any, path ...string) string {
	s, _, _ := unstructured.NestedString(m, path...)
	return s
}

// maps are the elements of a list that are maps.
func maps(m map[string]any, path ...string) (out []map[string]any) {
	items, _, _ := unstructured.NestedFieldNoCopy(m, path...)
	list, _ := items.([]any)
	for _, item := range list {
		if fields, ok := item.(map[string]any); ok {
			out = append(out, fields)
		}
	}
	return out
}
