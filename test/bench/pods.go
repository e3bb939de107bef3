// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"
)

const (
	testImage = "slipway.dev/testpod:1"
	podsPath  = "/api/v1/namespaces/default/pods"
	firstPod  = "bench-first"
	askingPod = "bench-lookup"
)

// pod is an ordinary one: it has its ServiceAccount's token and waits, as any pod does, for the cluster's root certificate.
func pod(name string, args ...string) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {
  "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
  "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
  "containers": [{"name": "main", "image": %q, "imagePullPolicy": "Never", "args": ["%s"]}]}}`,
		name, testImage, strings.Join(args, `", "`))
}

// create tries until the pod is accepted: before its namespace has the default ServiceAccount, a pod is refused with 403.
func (a api) create(ctx context.Context, manifest string) error {
	var refused error
	err := poll(ctx, step, func() bool {
		switch status, text := a.ask(ctx, http.MethodPost, podsPath, manifest); status {
		case http.StatusCreated, http.StatusConflict:
			return true
		case http.StatusBadRequest, http.StatusUnprocessableEntity:
			refused = fmt.Errorf("create pod: %s", text)
			return true
		}
		return false
	})
	if refused != nil {
		return refused
	}
	return err
}

// answered is the moment at which the asking pod had its answer, as the pod itself says: "10.96.0.1 2026-11-20T07:00:00.5Z".
func (a api) answered(ctx context.Context) (at time.Time, err error) {
	err = poll(ctx, 2*step, func() bool {
		status, text := a.ask(ctx, http.MethodGet, podsPath+"/"+askingPod+"/log", "")
		fields := strings.Fields(text)
		if status != http.StatusOK || len(fields) < 2 {
			return false
		}
		at, err = time.Parse(time.RFC3339Nano, fields[len(fields)-1])
		return err == nil
	})
	return at, err
}

// clear takes the pods away, so that only the cluster itself remains.
func (a api) clear(ctx context.Context) error {
	for _, name := range []string{firstPod, askingPod} {
		if status, text := a.ask(ctx, http.MethodDelete, podsPath+"/"+name+"?gracePeriodSeconds=0", ""); status != http.StatusOK {
			return fmt.Errorf("delete pod %s: %s", name, text)
		}
	}
	return nil
}
