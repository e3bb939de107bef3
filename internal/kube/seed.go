// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/slipway-project/slipway/internal/core/objects"
)

// Seed creates what the controller-manager would create a moment later, so that the first pod need not wait for it. What
// exists stays as it is, and what is created is not ours: no label, no field manager that would hold on to it.
func (c *Client) Seed(ctx context.Context, objs []objects.Object) error {
	for _, o := range objs {
		err := c.try(ctx, func(string) {}, func() error {
			in, err := c.where(ctx, gvkOf(o), o.Namespace())
			if err != nil {
				return err
			}
			_, err = in.Create(ctx, &unstructured.Unstructured{Object: o}, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("seed %s: %w", o, err)
		}
	}
	return nil
}

// notReady is the taint that a node is born with. The controller-manager takes it away when the node is Ready; KeepNode does so
// at once: a pod that meets the taint is put back for a second.
const notReady = "node.kubernetes.io/not-ready"

// withoutTaint is a merge patch, nil when the node does not have the taint. The resource version keeps it from writing over
// taints that came meanwhile.
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
