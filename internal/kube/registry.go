// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/slipway-project/slipway/internal/core/record"
)

const (
	recordsNamespace = "slipway-system"
	recordsLabel     = "slipway.dev/registry" // its value is the kind
	recordsType      = "slipway.dev/"         // and the kind: a Secret's type never changes
	recordsField     = "record"

	// recordsPatience limits a request to a server that has accepted it and does not respond. The caller then does not know the
	// result and has to ask again.
	recordsPatience = 10 * time.Second
)

var secrets = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}

// RecordStore stores the cluster's records as Secrets KIND.NAME in the namespace slipway-system. Only the control role has rights to
// them. It reads from a majority of etcd, never from a cache. A call fails if the server cannot be reached; only Watch waits for it.
type RecordStore struct {
	c *Client
}

// Records is the store of the cluster's records.
func (c *Client) Records() *RecordStore { return &RecordStore{c} }

// Get is registry.Store.
func (s *RecordStore) Get(ctx context.Context, kind, name string) (record.Item, error) {
	if err := record.CheckName(kind, name); err != nil {
		return record.Item{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, recordsPatience)
	defer cancel()
	o, err := s.c.dyn.Resource(secrets).Namespace(recordsNamespace).Get(ctx, secretName(kind, name), metav1.GetOptions{})
	if isSecretGone(err, kind, name) {
		err = record.ErrNotFound
	}
	if err != nil {
		return record.Item{}, fmt.Errorf("get record %s %s: %w", kind, name, err)
	}
	return itemOf(o, kind)
}

// List is registry.Store.
func (s *RecordStore) List(ctx context.Context, kind string) ([]record.Item, error) {
	if err := record.CheckName(kind, "x"); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, recordsPatience)
	defer cancel()
	found, err := s.c.dyn.Resource(secrets).Namespace(recordsNamespace).List(ctx, metav1.ListOptions{LabelSelector: recordsLabel + "=" + kind})
	if err != nil {
		return nil, fmt.Errorf("list records %s: %w", kind, err)
	}
	if found.GetContinue() != "" { // it did not ask for pages
		return nil, fmt.Errorf("list records %s: the API server sent only a part", kind)
	}
	out := make([]record.Item, 0, len(found.Items))
	for i := range found.Items {
		item, err := itemOf(&found.Items[i], kind)
		if err != nil {
			return nil, fmt.Errorf("list records %s: %w", kind, err)
		}
		out = append(out, item)
	}
	slices.SortFunc(out, func(a, b record.Item) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// Put is registry.Store.
func (s *RecordStore) Put(ctx context.Context, item record.Item) (record.Item, error) {
	if err := record.CheckName(item.Kind, item.Name); err != nil {
		return record.Item{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, recordsPatience)
	defer cancel()
	in := s.c.dyn.Resource(secrets).Namespace(recordsNamespace)
	var o *unstructured.Unstructured
	var err error
	if item.Version == "" {
		o, err = in.Create(ctx, secretOf(item), metav1.CreateOptions{FieldManager: manager})
		if apierrors.IsAlreadyExists(err) {
			err = record.ErrExists
		}
	} else {
		o, err = in.Update(ctx, secretOf(item), metav1.UpdateOptions{FieldManager: manager})
		if apierrors.IsConflict(err) || isSecretGone(err, item.Kind, item.Name) {
			err = record.ErrConflict
		}
	}
	if err != nil {
		return record.Item{}, fmt.Errorf("put record %s %s: %w", item.Kind, item.Name, err)
	}
	return itemOf(o, item.Kind)
}

// Delete is registry.Store.
func (s *RecordStore) Delete(ctx context.Context, kind, name, version string) error {
	if err := record.CheckName(kind, name); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, recordsPatience)
	defer cancel()
	opts := metav1.DeleteOptions{}
	if version != "" {
		opts.Preconditions = &metav1.Preconditions{ResourceVersion: &version}
	}
	err := s.c.dyn.Resource(secrets).Namespace(recordsNamespace).Delete(ctx, secretName(kind, name), opts)
	switch {
	case err == nil:
		return nil
	case isSecretGone(err, kind, name):
		err = record.ErrNotFound
	case apierrors.IsConflict(err):
		err = record.ErrConflict
	}
	return fmt.Errorf("delete record %s %s: %w", kind, name, err)
}

// Watch is registry.Store.
func (s *RecordStore) Watch(ctx context.Context, kind string, changed func()) error {
	if err := record.CheckName(kind, "x"); err != nil {
		return err
	}
	waiting := onChange(func(why string) { s.c.log.Debug("records cannot be watched", "kind", kind, "why", why) })
	listing := false
	q := query{resource: secrets, namespace: recordsNamespace, labels: recordsLabel + "=" + kind, listed: func(begins bool) {
		if listing = begins; !begins {
			changed() // once for the whole list, even if it is empty: records may have been deleted meanwhile
		}
	}}
	err := s.c.follow(ctx, q, waiting, func(*unstructured.Unstructured, bool) (bool, error) {
		if !listing {
			changed()
		}
		return false, nil
	})
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

func secretName(kind, name string) string { return kind + "." + name }

// isSecretGone accepts only a 404 that names this Secret. A missing namespace or a wrong path cause other 404s.
func isSecretGone(err error, kind, name string) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	d := status.Status().Details
	return d != nil && d.Kind == secrets.Resource && d.Name == secretName(kind, name)
}

func secretOf(item record.Item) *unstructured.Unstructured {
	meta := map[string]any{
		"name": secretName(item.Kind, item.Name), "namespace": recordsNamespace, "labels": map[string]any{recordsLabel: item.Kind},
	}
	if item.Version != "" {
		meta["resourceVersion"] = item.Version
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": recordsType + item.Kind,
		"data": map[string]any{recordsField: base64.StdEncoding.EncodeToString(item.Data)},
	}}
}

// itemOf refuses a Secret that has the label but is not a record, or was changed by another program.
func itemOf(o *unstructured.Unstructured, kind string) (record.Item, error) {
	name, ok := strings.CutPrefix(o.GetName(), kind+".")
	text, has, _ := unstructured.NestedString(o.Object, "data", recordsField)
	data, err := base64.StdEncoding.DecodeString(text)
	if !ok || !has || err != nil || str(o.Object, "type") != recordsType+kind || o.GetResourceVersion() == "" {
		return record.Item{}, fmt.Errorf("the Secret %s/%s is labelled as a record of kind %s and is none: remove it or its label %s", recordsNamespace, o.GetName(), kind, recordsLabel)
	}
	return record.Item{Kind: kind, Name: name, Version: o.GetResourceVersion(), Data: data}, nil
}
