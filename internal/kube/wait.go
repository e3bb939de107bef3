// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// WaitReadyz waits until the API server says that it is ready. Readiness cannot be watched, so it is asked at short intervals.
func (c *Client) WaitReadyz(ctx context.Context, report func(reason string)) error {
	report = onChange(report)
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for started := time.Now(); ; {
		why := c.unready(ctx)
		if why == "" {
			return nil
		}
		report(why)
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the API server: %w", ended(ctx, why))
		case <-tick.C:
		}
		if time.Since(started) > 30*time.Second { // no start takes so long: somebody has to act first
			tick.Reset(time.Second)
		}
	}
}

func (c *Client) unready(ctx context.Context) string {
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

// WaitNodeReady waits until the node exists and says that it is ready.
func (c *Client) WaitNodeReady(ctx context.Context, name string, report func(reason string)) error {
	return c.wait(ctx, named(nodes, "", name), "node "+name, report, func(o *unstructured.Unstructured) (string, error) {
		ready, why := condition(o, "Ready")
		if ready {
			return "", nil
		}
		return why, nil
	})
}

// WaitDefaultServiceAccount waits until pods may be created in the namespace.
func (c *Client) WaitDefaultServiceAccount(ctx context.Context, namespace string, report func(reason string)) error {
	return c.wait(ctx, named(accounts, namespace, "default"), "ServiceAccount "+namespace+"/default", report,
		func(*unstructured.Unstructured) (string, error) { return "", nil })
}

// WaitPodRunning waits until the pod's containers run, or have run to a good end. A pod that failed is an error.
func (c *Client) WaitPodRunning(ctx context.Context, namespace, name string, report func(reason string)) error {
	return c.wait(ctx, named(pods, namespace, name), "pod "+namespace+"/"+name, report, func(o *unstructured.Unstructured) (string, error) {
		switch phase := str(o.Object, "status", "phase"); phase {
		case "Running", "Succeeded":
			return "", nil
		case "Failed":
			return "", errors.New("it has failed: " + podReason(o))
		}
		return podReason(o), nil
	})
}

// WaitDeploymentAvailable waits until all replicas of the newest template are available.
func (c *Client) WaitDeploymentAvailable(ctx context.Context, namespace, name string, report func(reason string)) error {
	return c.wait(ctx, named(deployments, namespace, name), "deployment "+namespace+"/"+name, report, func(o *unstructured.Unstructured) (string, error) {
		want := int64(1)
		if n, ok, _ := unstructured.NestedInt64(o.Object, "spec", "replicas"); ok {
			want = n
		}
		seen, _, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration")
		updated, _, _ := unstructured.NestedInt64(o.Object, "status", "updatedReplicas")
		available, _, _ := unstructured.NestedInt64(o.Object, "status", "availableReplicas")
		if seen < o.GetGeneration() {
			return "the controller-manager has not seen it yet", nil
		}
		if min(updated, available) >= want {
			return "", nil
		}
		return fmt.Sprintf("%d of %d replicas are available", min(updated, available), want), nil
	})
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
