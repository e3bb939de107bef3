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

// Standing says of nodes' names, by the records, who has them. A name is in one of the sets at most; of a name in none nothing
// is known.
type Standing struct {
	In      map[string]bool // a node of the cluster
	Leaving map[string]bool // a node that is being removed
	Removed map[string]bool // a node that was removed, and no other has the name
}

const (
	removedName = "removed-nodes" // the policy slipway-removed-nodes reads it
	expelSoon   = 2 * time.Second // for a Node that came in the moment before the API server had heard of a change
	expelAgain  = time.Minute     // for one that came while the policy was away
)

// Expel keeps those out who were removed, for as long as ctx lasts. Their kubelets' certificates are good for a while yet: by
// the list that it keeps, the API server lets them neither register nor renew, and a Node that is there under such a name is
// deleted. A name leaves the list only when a node of the cluster has it again. It returns only the context's error.
func (c *Client) Expel(ctx context.Context, standing func() Standing, changed <-chan struct{}) error {
	waiting := onChange(func(why string) { c.log.Warn("removed nodes cannot be kept out", "why", why) })
	look := time.NewTimer(expelAgain)
	defer look.Stop()
	var pace backoff
	for {
		moved, err := c.expel(ctx, standing())
		if err != nil && ctx.Err() == nil {
			waiting(reason(err))
			if pace.pause(ctx) != nil {
				return ctx.Err()
			}
			continue
		}
		pace.reset()
		look.Reset(expelAgain)
		if moved {
			look.Reset(expelSoon)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-look.C:
		}
	}
}

// expel looks once; moved: it has written or deleted something.
func (c *Client) expel(ctx context.Context, s Standing) (moved bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, recordsPatience)
	defer cancel()
	if moved, err = c.list(ctx, s); err != nil {
		return false, fmt.Errorf("list removed nodes: %w", err)
	}
	if len(s.Removed) == 0 {
		return moved, nil
	}
	there, err := c.ListNodes(ctx)
	if err != nil {
		return false, err
	}
	var errs []error
	for _, n := range there {
		if s.Removed[n.Name] {
			c.log.Warn("a removed node has registered, and is deleted", "node", n.Name)
			moved, errs = true, append(errs, c.DeleteNode(ctx, n.Name))
		}
	}
	return moved, errors.Join(errs...)
}

// list brings the list up to date. What is on it stays, unless a node of the cluster has the name: lost records let nobody in.
func (c *Client) list(ctx context.Context, s Standing) (changed bool, err error) {
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
	want := banned(have, s)
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

// banned is what the list has to be.
func banned(have map[string]string, s Standing) map[string]string {
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
