// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// Taint keeps pods away from a node.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

// EnsureNodeFields waits for the node to register and then sets its pod range, labels and taints. It adds, and takes nothing
// away that others have put there. A node that has another pod range already is an error: the range cannot be changed.
func (c *Client) EnsureNodeFields(ctx context.Context, name string, podCIDR netip.Prefix, labels map[string]string, taints []Taint) error {
	last := "the node has not registered"
	err := c.follow(ctx, named(nodes, "", name), func(why string) { last = why }, func(o *unstructured.Unstructured, gone bool) (bool, error) {
		if gone {
			return false, nil
		}
		patch, err := nodePatch(o, podCIDR, labels, taints)
		if err != nil || patch == nil {
			return true, err
		}
		// The resource version makes the write fail where the taints that it repeats are no longer those that were read.
		_, err = c.dyn.Resource(nodes).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: manager})
		return err == nil, err
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		err = ended(ctx, last)
	}
	return fmt.Errorf("set fields of node %s: %w", name, err)
}

// nodePatch is a JSON merge patch, nil when nothing is missing.
func nodePatch(o *unstructured.Unstructured, podCIDR netip.Prefix, labels map[string]string, taints []Taint) ([]byte, error) {
	meta, spec := map[string]any{"resourceVersion": o.GetResourceVersion()}, map[string]any{}
	switch have := str(o.Object, "spec", "podCIDR"); {
	case !podCIDR.IsValid():
	case have == "":
		spec["podCIDR"], spec["podCIDRs"] = podCIDR.String(), []string{podCIDR.String()}
	case have != podCIDR.String():
		return nil, fmt.Errorf("it has the pod range %s and the plan wants %s, which cannot be changed: delete the Node object, then restart its kubelet", have, podCIDR)
	}
	missing := map[string]string{}
	for k, v := range labels {
		if have, ok := o.GetLabels()[k]; !ok || have != v {
			missing[k] = v
		}
	}
	if len(missing) > 0 {
		meta["labels"] = missing
	}
	if all, added := withTaints(maps(o.Object, "spec", "taints"), taints); added {
		spec["taints"] = all
	}
	if len(missing) == 0 && len(spec) == 0 {
		return nil, nil
	}
	return json.Marshal(map[string]any{"metadata": meta, "spec": spec})
}

// withTaints adds what is missing. A taint is the same when key and effect are; a merge patch replaces the whole list.
func withTaints(have []map[string]any, want []Taint) (all []any, added bool) {
	for _, t := range have {
		all = append(all, t)
	}
next:
	for _, w := range want {
		for _, t := range have {
			if str(t, "key") != w.Key || str(t, "effect") != w.Effect {
				continue
			}
			if str(t, "value") != w.Value {
				t["value"], added = w.Value, true
			}
			continue next
		}
		all, added = append(all, w), true
	}
	return all, added
}
