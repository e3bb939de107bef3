// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-project/slipway/internal/sleep"
)

// ErrNoNode means that the cluster has no Node object of this name.
var ErrNoNode = errors.New("the cluster has no Node of this name")

const (
	roleLabel = "node-role.kubernetes.io/"

	// notReady is the taint that every node starts with. The controller manager removes it from a node that is ready; KeepNode does
	// so sooner, because a pod that meets the taint is not scheduled for a second.
	notReady = "node.kubernetes.io/not-ready"
)

// NodeInfo is a Node as the API server reports it.
type NodeInfo struct {
	Name          string
	Roles         []string // from its labels, sorted
	Addresses     []netip.Addr
	PodCIDR       string
	Version       string // of its kubelet
	Ready         bool
	Reason        string // why it is not ready
	Unschedulable bool
}

// ListNodes returns all Nodes, sorted by name.
func (c *Client) ListNodes(ctx context.Context) ([]NodeInfo, error) {
	found, err := c.dyn.Resource(nodes).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	out := []NodeInfo{}
	for i := range found.Items {
		out = append(out, infoOf(&found.Items[i]))
	}
	slices.SortFunc(out, func(a, b NodeInfo) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// infoOf reads the fields of NodeInfo from a Node. Addresses that are not IP addresses are ignored.
func infoOf(o *unstructured.Unstructured) NodeInfo {
	n := NodeInfo{Name: o.GetName(), PodCIDR: str(o.Object, "spec", "podCIDR"), Version: str(o.Object, "status", "nodeInfo", "kubeletVersion")}
	for label := range o.GetLabels() {
		if role, ok := strings.CutPrefix(label, roleLabel); ok {
			n.Roles = append(n.Roles, role)
		}
	}
	slices.Sort(n.Roles)
	for _, a := range maps(o.Object, "status", "addresses") {
		if addr, err := netip.ParseAddr(str(a, "address")); err == nil && !slices.Contains(n.Addresses, addr) {
			n.Addresses = append(n.Addresses, addr)
		}
	}
	n.Ready, n.Reason = condition(o, "Ready")
	n.Unschedulable, _, _ = unstructured.NestedBool(o.Object, "spec", "unschedulable")
	return n
}

// NodeAlive reports whether the Node's kubelet sends heartbeats, as judged by the node lifecycle controller: the heartbeats' own
// times come from the node's clock, which may be wrong. It is false for a Node that does not exist, and true for one that the
// controller has not judged yet.
func (c *Client) NodeAlive(ctx context.Context, name string) (bool, error) {
	o, err := c.dyn.Resource(nodes).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read node %s: %w", name, err)
	}
	for _, condition := range maps(o.Object, "status", "conditions") {
		if str(condition, "type") == "Ready" {
			return str(condition, "status") != "Unknown", nil
		}
	}
	return true, nil
}

// Cordon marks the node as unschedulable. An unknown node is [ErrNoNode].
func (c *Client) Cordon(ctx context.Context, node string) error {
	return c.setUnschedulable(ctx, node, true)
}

// Uncordon marks the node as schedulable. An unknown node is [ErrNoNode].
func (c *Client) Uncordon(ctx context.Context, node string) error {
	return c.setUnschedulable(ctx, node, false)
}

func (c *Client) setUnschedulable(ctx context.Context, node string, value bool) error {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"unschedulable": value}})
	if err != nil {
		return err
	}
	_, err = c.dyn.Resource(nodes).Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: manager})
	if apierrors.IsNotFound(err) {
		err = ErrNoNode
	}
	if err != nil {
		return fmt.Errorf("set unschedulable=%t for node %s: %w", value, node, err)
	}
	return nil
}

// DeleteNode deletes the Node. It is not an error if the Node does not exist.
func (c *Client) DeleteNode(ctx context.Context, node string) error {
	err := c.dyn.Resource(nodes).Delete(ctx, node, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete node %s: %w", node, err)
	}
	return nil
}

// Taint keeps pods away from a node.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

// Record is what the cluster has decided about a node. It takes precedence over what the kubelet says.
type Record struct {
	Name    string
	PodCIDR netip.Prefix
	Labels  map[string]string
	Taints  []Taint
}

// Absent is the reason that KeepNode reports for a Node that does not exist.
func Absent(node string) string { return "node " + node + " does not exist" }

// KeepNode keeps the record's fields in the Node until ctx ends. At first and at each change it calls say with the reason why the
// Node is not as it should be; "" means that it has the record's fields and is ready. It calls changed for each write. It adds what
// is missing and removes nothing that others have added, except the taint that every node starts with. It returns only the
// context's error.
func (c *Client) KeepNode(ctx context.Context, r Record, say, changed func(string)) error {
	k := nodeKeeper{Client: c, record: r, changed: changed}
	say = onState(say)
	return c.follow(ctx, named(nodes, "", r.Name), say, func(o *unstructured.Unstructured, gone bool) (bool, error) {
		if gone {
			say(Absent(r.Name))
			return false, nil
		}
		why, err := k.reconcile(ctx, o)
		if err == nil {
			say(why)
		}
		return false, err
	})
}

// nodeKeeper is the state of one call of KeepNode. Only follow uses it, one call at a time.
type nodeKeeper struct {
	*Client
	record  Record
	changed func(string)
	written []time.Time // times of the writes of the last minute
}

// reconcile writes what is missing and returns why the Node is not as it should be. A write causes another call.
func (k *nodeKeeper) reconcile(ctx context.Context, o *unstructured.Unstructured) (why string, err error) {
	patch, conflict := nodePatch(o, k.record.PodCIDR, k.record.Labels, k.record.Taints)
	if patch != nil {
		if err := k.write(ctx, patch); err != nil {
			return "", err
		}
		k.log.Info("node record written", "node", k.record.Name, "patch", string(patch))
		k.changed("record of node " + k.record.Name)
	}
	ready, why := condition(o, "Ready")
	switch {
	case conflict != nil:
		return conflict.Error(), nil //nolint:nilerr // it describes the node and is not a failure to look at it
	case patch != nil:
		return "its record is being written", nil
	case !ready:
		return why, nil
	}
	if patch, err = withoutTaint(o, notReady); patch != nil {
		err = k.write(ctx, patch)
	}
	return "", err
}

// write slows down after many writes, because another program may keep setting the same fields. The resource version in the patch
// makes it fail if the Node has changed since it was read; the watch then delivers the newer Node.
func (k *nodeKeeper) write(ctx context.Context, patch []byte) error {
	now := time.Now()
	k.written = slices.DeleteFunc(append(k.written, now), func(t time.Time) bool { return now.Sub(t) > time.Minute })
	if len(k.written) > 6 {
		if err := sleep.For(ctx, 5*time.Second); err != nil {
			return err
		}
	}
	_, err := k.dyn.Resource(nodes).Patch(ctx, k.record.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: manager})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// nodePatch returns a JSON merge patch with what is missing; nil if nothing is. The error describes what a patch cannot change.
func nodePatch(o *unstructured.Unstructured, podCIDR netip.Prefix, labels map[string]string, taints []Taint) ([]byte, error) {
	meta, spec := map[string]any{"resourceVersion": o.GetResourceVersion()}, map[string]any{}
	switch have := str(o.Object, "spec", "podCIDR"); {
	case !podCIDR.IsValid():
	case have == "":
		spec["podCIDR"], spec["podCIDRs"] = podCIDR.String(), []string{podCIDR.String()}
	case have != podCIDR.String():
		return nil, fmt.Errorf("its pod CIDR is %s, want %s, and it cannot be changed: delete the Node object, then restart its kubelet", have, podCIDR)
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

// withTaints adds missing taints to the list, because a merge patch replaces a whole list. Key and effect identify a taint.
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

// withoutTaint returns a merge patch that removes a taint; nil if the node does not have it. The resource version in the patch
// protects taints that were added meanwhile.
func withoutTaint(o *unstructured.Unstructured, key string) ([]byte, error) {
	left, found := []any{}, false
	for _, t := range maps(o.Object, "spec", "taints") {
		if str(t, "key") == key && str(t, "effect") == "NoSchedule" {
			found = true
			continue
		}
		left = append(left, t)
	}
	if !found {
		return nil, nil
	}
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": o.GetResourceVersion()},
		"spec":     map[string]any{"taints": left},
	})
}
