// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Unready asks the API server whether it is ready; empty when it is.
func (c *Client) Unready(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var code int
	body, err := c.rest.Get().AbsPath("/readyz").Param("verbose", "").Do(ctx).StatusCode(&code).Raw()
	if code == 200 {
		return ""
	}
	var missing []string
	for line := range strings.Lines(string(body)) { // "[-]poststarthook/rbac/bootstrap-roles failed: reason withheld"
		if name, ok := strings.CutPrefix(line, "[-]"); ok {
			name, _, _ = strings.Cut(name, " ")
			missing = append(missing, name)
		}
	}
	switch {
	case len(missing) > 0:
		return "the API server still misses " + strings.Join(missing, ", ")
	case err != nil:
		return reason(err)
	}
	return fmt.Sprintf("the API server answers %d", code)
}

// WatchDeployment tells say, for as long as ctx lasts and each time it changes, why the deployment is not available; empty when
// all replicas of the newest template are. It returns only the context's error.
func (c *Client) WatchDeployment(ctx context.Context, namespace, name string, say func(reason string)) error {
	say = onState(say)
	return c.follow(ctx, named(deployments, namespace, name), say, func(o *unstructured.Unstructured, gone bool) (bool, error) {
		if gone {
			say("deployment " + namespace + "/" + name + " does not exist")
			return false, nil
		}
		say(unavailable(o))
		return false, nil
	})
}

func unavailable(o *unstructured.Unstructured) string {
	want := int64(1)
	if n, ok, _ := unstructured.NestedInt64(o.Object, "spec", "replicas"); ok {
		want = n
	}
	seen, _, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration")
	updated, _, _ := unstructured.NestedInt64(o.Object, "status", "updatedReplicas")
	available, _, _ := unstructured.NestedInt64(o.Object, "status", "availableReplicas")
	switch {
	case seen < o.GetGeneration():
		return "the controller-manager has not seen it yet"
	case min(updated, available) >= want:
		return ""
	}
	return fmt.Sprintf("%d of %d replicas are available", min(updated, available), want)
}

// wait follows one object until reason is "". why returns the reason, or an error when waiting is pointless.
func (c *Client) wait(ctx context.Context, q query, what string, report func(string), why func(*unstructured.Unstructured) (string, error)) error {
	report = onChange(report)
	last := ""
	say := func(text string) { last = text; report(text) }
	err := c.follow(ctx, q, say, func(o *unstructured.Unstructured, gone bool) (bool, error) {
		if gone {
			say(what + " does not exist yet")
			return false, nil
		}
		text, err := why(o)
		if err != nil || text == "" {
			return true, err
		}
		say(text)
		return false, nil
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		err = ended(ctx, last)
	}
	return fmt.Errorf("wait for %s: %w", what, err)
}
