// SPDX-License-Identifier: Apache-2.0

package kube

import "k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

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
