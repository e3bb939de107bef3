// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-project/slipway/internal/sleep"
)

// Taint keeps pods away from a node.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

// Record is what the cluster says of a node, whatever its kubelet says.
type Record struct {
	Name    string
	PodCIDR netip.Prefix
	Labels  map[string]string
	Taints  []Taint
}

// Absent is what KeepNode says of a node that is not there.
func Absent(node string) string { return "node " + node + " does not exist" }

// KeepNode keeps the record in the node for as long as ctx lasts, and tells say each time how the node is: empty means that it
// has the record and says that it is ready. changed is told of each write of the record. It adds, and takes nothing away that
// others have put there, but for the taint of a node's birth (see [notReady]). It returns only the context's error.
func (c *Client) KeepNode(ctx context.Context, r Record, say, changed func(string)) error {
	k := nodeKeeper{Client: c, record: r, changed: changed}
	say = onState(say)
	return c.follow(ctx, named(nodes, "", r.Name), say, func(o *unstructured.Unstructured, gone bool) (bool, error) {
		if gone {
			say(Absent(r.Name))
			return false, nil
		}
		why, err := k.look(ctx, o)
		if err == nil {
			say(why)
		}
		return false, err
	})
}

type nodeKeeper struct {
	*Client
	record  Record
	changed func(string)
	written []time.Time // the last writes
}

// look writes what is missing and tells why the node is not as it should be. After a write the next change brings it here again.
func (k *nodeKeeper) look(ctx context.Context, o *unstructured.Unstructured) (why string, err error) {
	patch, wrong := nodePatch(o, k.record.PodCIDR, k.record.Labels, k.record.Taints)
	if patch != nil {
		if err := k.write(ctx, patch); err != nil {
			return "", err
		}
		k.log.Info("node record written", "node", k.record.Name, "patch", string(patch))
		k.changed("record of node " + k.record.Name)
	}
	ready, why := condition(o, "Ready")
	switch {
	case wrong != nil:
		return wrong.Error(), nil //nolint:nilerr // it is the node's state, not a trouble with looking at it
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

// write is slow when it has been busy: somebody else who sets the same fields must not be fought at full speed. The resource
// version in the patch makes it fail where what it repeats is no longer what was read; the newer object is on its way here then.
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
