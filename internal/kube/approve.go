// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/slipway-project/slipway/internal/core/roster"
)

// ApproveServing decides about kubelets' serving certificates for as long as ctx lasts, each as soon as it is asked for. What is
// wrong is denied with the reason in the request and in an event. A request of a node that known does not have stays open
// and is looked at again when changed says so. It returns only the context's error.
func (c *Client) ApproveServing(ctx context.Context, known func() map[string]Machine, changed <-chan struct{}) error {
	a := approver{Client: c, known: known, told: map[string]bool{}, keys: map[string]keyOf{}}
	waiting := onChange(func(why string) { c.log.Debug("certificate requests cannot be seen", "why", why) })
	q := query{
		resource: requests, fields: fields.OneTermEqualSelector("spec.signerName", servingSigner), again: changed, first: approved,
		listed: func(begins bool) {
			if begins {
				clear(a.keys)
			}
		},
	}
	return c.follow(ctx, q, waiting, func(o *unstructured.Unstructured, gone bool) (bool, error) {
		if o == nil {
			return false, nil
		}
		if gone {
			delete(a.told, o.GetName())
			delete(a.keys, o.GetName())
			return false, nil
		}
		return false, a.look(ctx, o)
	})
}

// approver decides. Only the follower calls it, one call at a time.
type approver struct {
	*Client
	known func() map[string]Machine
	told  map[string]bool  // names of open requests that the log has
	keys  map[string]keyOf // by request: the keys of those that were approved and have not been cleaned up
}

// keyOf says which node's a key is.
type keyOf struct{ node, pin string }

func (a *approver) look(ctx context.Context, o *unstructured.Unstructured) error {
	if approved(o) {
		a.remember(o)
		return nil
	}
	open, err := a.decide(ctx, o)
	if open != "" && !a.told[o.GetName()] {
		a.told[o.GetName()] = true
		a.log.Warn("serving certificate is not decided", "request", o.GetName(), "why", open)
	}
	return err
}

func approved(o *unstructured.Unstructured) bool {
	ok, _ := condition(o, "Approved")
	return ok
}

func (a *approver) remember(o *unstructured.Unstructured) {
	r := requestOf(o)
	if csr, wrong := parseRequest(r.pem); wrong == "" {
		a.keys[o.GetName()] = keyOf{strings.TrimPrefix(r.user, nodePrefix), roster.Pin(csr.RawSubjectPublicKeyInfo)}
	}
}

// other is the node, if there is one beside this, whose key this is: of its machine, or of a serving certificate that it was
// given not long ago.
func (a *approver) other(known map[string]Machine, node, pin string) string {
	for name, m := range known {
		if m.Key == pin && name != node {
			return name
		}
	}
	for _, k := range a.keys {
		if k.pin == pin && k.node != node {
			return k.node
		}
	}
	return ""
}

// decide judges one request and writes the verdict; open is the reason why there is none yet.
func (a *approver) decide(ctx context.Context, o *unstructured.Unstructured) (open string, err error) {
	if len(maps(o.Object, "status", "conditions")) > 0 || str(o.Object, "status", "certificate") != "" {
		return "", nil
	}
	r, known := requestOf(o), a.known()
	v, why := judge(r, known, func(node, pin string) string { return a.other(known, node, pin) })
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
	if _, err := a.dyn.Resource(requests).Update(ctx, signed, metav1.UpdateOptions{FieldManager: manager}, "approval"); err != nil {
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "", fmt.Errorf("decide about %s: %w", o.GetName(), err)
	}
	if v == approve {
		a.remember(o)
		a.log.Info("serving certificate approved", "request", o.GetName(), "user", r.user)
		return "", nil
	}
	a.log.Warn("serving certificate denied", "request", o.GetName(), "user", r.user, "why", why)
	a.denied(ctx, o, why)
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
