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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// ErrNoNode means that the cluster has no Node of this name.
var ErrNoNode = errors.New("there is no Node of this name in the cluster")

// NodeInfo is a Node as the API has it.
type NodeInfo struct {
	Name          string
	Roles         []string // of its labels, sorted
	Addresses     []netip.Addr
	PodCIDR       string
	Version       string // of its kubelet
	Ready         bool
	Reason        string // why it is not ready
	Unschedulable bool
}

// NodeAlive tells whether the Node's kubelet was heard of lately, by the controller that watches it: its own times are those of its
// clock, which may be wrong. A Node that is not there was not heard of; one that nobody has judged yet was.
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

const roleLabel = "node-role.kubernetes.io/"

// ListNodes lists the Nodes by name.
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

// Cordon keeps new pods away from the node.
func (c *Client) Cordon(ctx context.Context, node string) error {
	return c.schedulable(ctx, node, false)
}

// Uncordon lets pods come to the node again.
func (c *Client) Uncordon(ctx context.Context, node string) error {
	return c.schedulable(ctx, node, true)
}

func (c *Client) schedulable(ctx context.Context, node string, yes bool) error {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"unschedulable": !yes}})
	if err != nil {
		return err
	}
	_, err = c.dyn.Resource(nodes).Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: manager})
	if apierrors.IsNotFound(err) {
		err = ErrNoNode
	}
	if err != nil {
		return fmt.Errorf("mark node %s as schedulable=%t: %w", node, yes, err)
	}
	return nil
}

// DeleteNode deletes the Node; that there is none is no error.
func (c *Client) DeleteNode(ctx context.Context, node string) error {
	err := c.dyn.Resource(nodes).Delete(ctx, node, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete node %s: %w", node, err)
	}
	return nil
}
