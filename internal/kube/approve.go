// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/netip"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
)

// ApproveServing decides about kubelets' serving certificates for as long as ctx lasts, each as soon as it is asked for. What is
// wrong is denied with the reason in the request and in an event. A request of a node that lookup does not know stays open
// and is looked at again when changed says so. It returns only the context's error.
func (c *Client) ApproveServing(ctx context.Context, lookup func(node string) (addrs []netip.Addr, ok bool), changed <-chan struct{}) error {
	told := map[string]bool{} // names of open requests that the log has
	waiting := onChange(func(why string) { c.log.Debug("certificate requests cannot be seen", "why", why) })
	q := query{resource: requests, fields: fields.OneTermEqualSelector("spec.signerName", servingSigner), again: changed}
	return c.follow(ctx, q, waiting, func(o *unstructured.Unstructured, gone bool) (bool, error) {
		switch {
		case o == nil:
			return false, nil
		case gone:
			delete(told, o.GetName())
			return false, nil
		}
		open, err := c.decide(ctx, o, lookup)
		if open != "" && !told[o.GetName()] {
			told[o.GetName()] = true
			c.log.Warn("serving certificate is not decided", "request", o.GetName(), "why", open)
		}
		return false, err
	})
}

// decide judges one request and writes the verdict; open is the reason why there is none yet.
func (c *Client) decide(ctx context.Context, o *unstructured.Unstructured, lookup func(string) ([]netip.Addr, bool)) (open string, err error) {
	if len(maps(o.Object, "status", "conditions")) > 0 || str(o.Object, "status", "certificate") != "" {
		return "", nil
	}
	r := requestOf(o)
	v, why := judge(r, lookup)
	condition := map[string]any{"status": "True", "message": why, "lastUpdateTime": time.Now().UTC().Format(time.RFC3339)}
	switch v {
	case approve:
		condition["type"], condition["reason"] = "Approved", "SlipwayApproved"
	case deny:
		condition["type"], condition["reason"] = "Denied", "SlipwayDenied"
	case undecided:
		return why, nil
	}
	signed := o.DeepCopy()
	if err := unstructured.SetNestedSlice(signed.Object, []any{condition}, "status", "conditions"); err != nil {
		return "", fmt.Errorf("decide about %s: %w", o.GetName(), err)
	}
	if _, err := c.dyn.Resource(requests).Update(ctx, signed, metav1.UpdateOptions{FieldManager: manager}, "approval"); err != nil {
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "", fmt.Errorf("decide about %s: %w", o.GetName(), err)
	}
	if v == approve {
		c.log.Info("serving certificate approved", "request", o.GetName(), "user", r.user)
		return "", nil
	}
	c.log.Warn("serving certificate denied", "request", o.GetName(), "user", r.user, "why", why)
	c.denied(ctx, o, why)
	return "", nil
}

func requestOf(o *unstructured.Unstructured) request {
	r := request{user: str(o.Object, "spec", "username")}
	r.groups, _, _ = unstructured.NestedStringSlice(o.Object, "spec", "groups")
	r.usages, _, _ = unstructured.NestedStringSlice(o.Object, "spec", "usages")
	if s, ok, _ := unstructured.NestedInt64(o.Object, "spec", "expirationSeconds"); ok {
		r.expires = time.Duration(s) * time.Second
	}
	r.pem, _ = base64.StdEncoding.DecodeString(str(o.Object, "spec", "request")) // what is no base64 is no PEM either
	return r
}

// denied leaves an event, so that `kubectl get events` shows what is also in the request. It is a courtesy: the verdict stands
// without it.
func (c *Client) denied(ctx context.Context, o *unstructured.Unstructured, why string) {
	now := time.Now().UTC().Format(time.RFC3339)
	event := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Event",
		"metadata": map[string]any{"generateName": o.GetName() + ".", "namespace": metav1.NamespaceDefault},
		"involvedObject": map[string]any{
			"apiVersion": o.GetAPIVersion(), "kind": o.GetKind(), "name": o.GetName(), "uid": string(o.GetUID()),
		},
		"type": "Warning", "reason": "ServingCertificateDenied", "message": why, "count": int64(1),
		"source": map[string]any{"component": manager}, "firstTimestamp": now, "lastTimestamp": now,
	}}
	if _, err := c.dyn.Resource(events).Namespace(metav1.NamespaceDefault).Create(ctx, event, metav1.CreateOptions{}); err != nil {
		c.log.Debug("event was not written", "request", o.GetName(), "why", reason(err))
	}
}
