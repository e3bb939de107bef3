// SPDX-License-Identifier: Apache-2.0

// Package ha_test tests a cluster of three control planes and two workers: the loss of an API server, of etcd's leader, of all control
// planes at once and of the network. Another test grows and shrinks a cluster. A failed part may make the parts after it fail.
package ha_test

import (
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

// workload is a pod on every node, including control planes, behind a Service.
const workload = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web, namespace: default}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      tolerations: [{operator: Exists}]
      containers:
      - {name: web, image: "slipway.dev/testpod:1", imagePullPolicy: Never, args: [serve, --port, "8081"],
         readinessProbe: {httpGet: {path: /, port: 8081}, periodSeconds: 1}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8081}]}
`

const (
	mains   = 3
	workers = 2
	soon    = 3 * time.Minute // far longer than any step takes
)

func TestHA(t *testing.T) {
	c := kit.New(t, "ha")
	up := c.MustUp("--control-planes", "3", "--workers", "2")
	t.Logf("up:\n%s", up.Out)
	for i, part := range []struct {
		name string
		test func(c *kit.Cluster)
	}{
		{"all are ready, and up again has nothing to do", allReady},
		{"pods on every node reach each other", podNetwork},
		{"services and names from every node", services},
		{"an API server is killed", killAPIServer},
		{"a control plane loses its power", stopFollower},
		{"the leader loses its power", stopLeader},
		{"all control planes lose their power together", stopAll},
		{"a control plane is cut off", cutMain},
		{"a worker is cut off", cutWorker},
		{"a reboot without any network", rebootAlone},
	} {
		if passed := c.Part(t, part.name, part.test); !passed && i < 1 {
			t.Fatal("the other parts need a cluster that is ready")
		}
	}
}

func allReady(c *kit.Cluster) {
	c.AllReady(soon, mains, workers)
	for _, m := range c.Machines() {
		if text := c.On(m).Exec("grep -v '^#' /etc/resolv.conf || true"); strings.TrimSpace(text) != "" {
			c.T.Errorf("/etc/resolv.conf of %s: got %s, want no servers: a cluster must not need DNS", m, text)
		}
	}
	c.UpToDate()
	for _, m := range c.Machines() {
		c.On(m).ImportTestImage()
	}
	c.Apply(workload)
	c.Kubectl("rollout", "status", "daemonset/web", "--timeout", "60s")
}

// webPod returns the process of the workload's pod on a machine.
func webPod(c *kit.Cluster, machine string) kit.Process {
	c.T.Helper()
	return c.On(machine).Process("testpod", "serve", "--port", "8081")
}
