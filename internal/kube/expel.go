// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	gomaps "maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// NodeStates says what the cluster's records know of node names. A name is in at most one of the sets; nothing is known of other
// names.
type NodeStates struct {
	In      map[string]bool // nodes of the cluster
	Leaving map[string]bool // nodes that are being removed
	Removed map[string]bool // nodes that were removed, unless another node has the name now
}

const (
	removedName   = "removed-nodes" // the ConfigMap that the policy slipway-removed-nodes reads
	recheckSoon   = 2 * time.Second // after a change: a Node may have registered before the API server knew the new list
	recheckAlways = time.Minute     // a Node may have registered while the policy was missing
)

// Expel keeps removed nodes out of the cluster until ctx ends. Their kubelets' certificates are still valid for a while. It
// maintains the list by which the API server refuses their registration and their certificate requests, and it deletes Nodes with
// such names. A name stays on the list until a node of the cluster has it again. changed makes it call states again. It returns
// only the context's error.
func (c *Client) Expel(ctx context.Context, states func() NodeStates, changed <-chan struct{}) error {
	waiting := onChange(func(why string) { c.log.Warn("removed nodes cannot be kept out", "why", why) })
	recheck := time.NewTimer(recheckAlways)
	defer recheck.Stop()
	var pace backoff
	for {
		acted, err := c.expelOnce(ctx, states())
		if err != nil && ctx.Err() == nil {
			waiting(reason(err))
			if pace.pause(ctx) != nil {
				return ctx.Err()
			}
			continue
		}
		pace.reset()
		recheck.Reset(recheckAlways)
		if acted {
			recheck.Reset(recheckSoon)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-recheck.C:
		}
	}
}

// expelOnce brings the list up to date and deletes the Nodes of removed nodes. acted is true if it has written or deleted something.
func (c *Client) expelOnce(ctx context.Context, s NodeStates) (acted bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, recordsPatience)
	defer cancel()
	if acted, err = c.updateRemoved(ctx, s); err != nil {
		return false, fmt.Errorf("update list of removed nodes: %w", err)
	}
	if len(s.Removed) == 0 {
		return acted, nil
	}
	existing, err := c.ListNodes(ctx)
	if err != nil {
		return false, err
	}
	var errs []error
	for _, n := range existing {
		if s.Removed[n.Name] {
			c.log.Warn("deleting the Node of a removed node", "node", n.Name)
			acted, errs = true, append(errs, c.DeleteNode(ctx, n.Name))
		}
	}
	return acted, errors.Join(errs...)
}

// updateRemoved writes the list if it has changed.
func (c *Client) updateRemoved(ctx context.Context, s NodeStates) (changed bool, err error) {
	in := c.dyn.Resource(configMaps).Namespace(recordsNamespace)
	o, err := in.Get(ctx, removedName, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return false, err
	}
	have := map[string]string{}
	if missing {
		o = &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": removedName, "namespace": recordsNamespace},
		}}
	} else if have, _, err = unstructured.NestedStringMap(o.Object, "data"); err != nil {
		return false, err
	}
	want := removedNodes(have, s)
	if gomaps.Equal(have, want) {
		return false, nil
	}
	if err := unstructured.SetNestedStringMap(o.Object, want, "data"); err != nil {
		return false, err
	}
	if missing {
		_, err = in.Create(ctx, o, metav1.CreateOptions{FieldManager: manager})
		return true, err
	}
	_, err = in.Update(ctx, o, metav1.UpdateOptions{FieldManager: manager})
	return true, err
}

// removedNodes returns the new list: name to reason. Names stay on it unless a node of the cluster has them, so that lost records
// admit no removed node.
func removedNodes(have map[string]string, s NodeStates) map[string]string {
	want := map[string]string{}
	for name, why := range have {
		if !s.In[name] {
			want[name] = why
		}
	}
	for name := range s.Leaving {
		want[name] = "is being removed"
	}
	for name := range s.Removed {
		want[name] = "was removed"
	}
	return want
}
