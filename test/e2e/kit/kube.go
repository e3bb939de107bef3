// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/artifact"
	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/testkit"
)

// TestImage is the image built from components/testpod.
const TestImage = "slipway.dev/testpod:1"

// Bundle returns the components of the default release and the store that holds them.
func Bundle(t testing.TB) (artifact.Bundle, *artifact.Store) {
	t.Helper()
	store, err := artifact.Open(filepath.Join(Root, "store"))
	if err != nil {
		t.Fatal(err)
	}
	bundle, ok, err := artifact.Lookup(context.Background(), store, catalog.Default()) // not t.Context: cleanups call it too
	if err != nil {
		t.Fatal(err)
	}
	if !ok {
		t.Fatal("the bundle is not complete: run slipway bundle build")
	}
	return bundle, store
}

// Component returns the path of a component's program in the store.
func Component(t testing.TB, name string) string {
	t.Helper()
	bundle, store := Bundle(t)
	blob, ok := bundle.Binaries[name]
	if !ok {
		t.Fatalf("the bundle has no %s", name)
	}
	return store.Path(blob.Digest)
}

// ImportTestImage imports TestImage into the machine's containerd, from the store that is mounted there.
func (c *Cluster) ImportTestImage() {
	c.T.Helper()
	bundle, _ := Bundle(c.T)
	archive := Root + "/store/blobs/sha256/" + bundle.Images[TestImage].Digest.Hex()
	c.Exec("ctr --namespace k8s.io images import --local " + archive)
}

// Kubeconfig returns the path of the user's kubeconfig.
func (c *Cluster) Kubeconfig() string { return filepath.Join(Root, "clusters", c.Name, "kubeconfig") }

// TryKubectl runs kubectl on the host with the cluster's kubeconfig.
func (c *Cluster) TryKubectl(stdin string, args ...string) Result {
	c.T.Helper()
	args = append([]string{"--kubeconfig", c.Kubeconfig()}, args...)
	return run(c.T, 5*time.Minute, strings.NewReader(stdin), Component(c.T, "kubectl"), args...)
}

// Kubectl is like TryKubectl, but fails the test unless the command succeeds. It returns standard output.
func (c *Cluster) Kubectl(args ...string) string {
	c.T.Helper()
	r := c.TryKubectl("", args...)
	if r.Code != 0 {
		c.T.Fatal(r)
	}
	return r.Out
}

// Apply applies a manifest.
func (c *Cluster) Apply(manifest string) {
	c.T.Helper()
	if r := c.TryKubectl(manifest, "apply", "--filename", "-"); r.Code != 0 {
		c.T.Fatal(r)
	}
}

// Wait runs kubectl wait, for up to three minutes. It repeats the command while the API server starts, and logs the last events if the
// condition is not met.
func (c *Cluster) Wait(what, condition string, args ...string) {
	c.T.Helper()
	var r Result
	for begun := time.Now(); ; <-time.After(100 * time.Millisecond) {
		r = c.TryKubectl("", append([]string{"wait", what, "--for", condition, "--timeout", "180s"}, args...)...)
		if r.Code == 0 {
			return
		}
		starting := slices.ContainsFunc([]string{
			"connection refused", "connection reset", "EOF",
			`User "kubernetes-admin" cannot`, // the API server has not read its roles yet
		}, func(s string) bool { return strings.Contains(r.Err, s) })
		if !starting || time.Since(begun) > time.Minute {
			break
		}
	}
	events := c.TryKubectl("", "get", "events", "--all-namespaces", "--sort-by", ".lastTimestamp")
	c.T.Fatalf("%s\n%s", r, lastLines(events.Out, 15))
}

// Status is the output of slipway status.
type Status struct {
	Ready    bool   `json:"ready"`
	Verdict  string `json:"verdict"`
	Machines []struct {
		Name    string `json:"name"`
		Running bool   `json:"running"`
		PID     int    `json:"pid"` // of its first process, on the host
		Node    *struct {
			Converged bool   `json:"converged"`
			Steps     int    `json:"steps"`
			Units     []Unit `json:"units"`
		} `json:"node"`
	} `json:"machines"`
}

// Unit is a supervised process of the machine.
type Unit struct {
	Name     string `json:"name"`
	PID      int    `json:"pid"` // in the machine
	Ready    bool   `json:"ready"`
	Restarts int    `json:"restarts"`
	Oneshot  bool   `json:"oneshot"` // runs to its end
}

// Status runs slipway status.
func (c *Cluster) Status() (Status, error) {
	c.T.Helper()
	r := c.Slipway("status", "--output", "json")
	var s Status
	if err := json.Unmarshal([]byte(r.Out), &s); err != nil {
		return s, fmt.Errorf("read status: %w: %s", err, r)
	}
	return s, nil
}

// Units returns the machine's long-running units by name. It fails when the agent does not answer.
func (c *Cluster) Units() (map[string]Unit, error) {
	c.T.Helper()
	s, err := c.Status()
	if err != nil {
		return nil, err
	}
	for _, m := range s.Machines {
		if m.Name != c.Node || m.Node == nil {
			continue
		}
		units := map[string]Unit{}
		for _, u := range m.Node.Units {
			if !u.Oneshot {
				units[u.Name] = u
			}
		}
		return units, nil
	}
	return nil, fmt.Errorf("read status of machine %s: the agent does not answer: %s", c.Node, s.Verdict)
}

// Components lists the long-running units of a machine that is both control plane and worker.
func Components() []string {
	return []string{"containerd", "etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubelet"}
}

// MustUnits is like Units, but waits until the agent answers.
func (c *Cluster) MustUnits() (units map[string]Unit) {
	c.T.Helper()
	testkit.Until(c.T, time.Minute, "the agent of "+c.Node+" reports its units", func() (err error) {
		units, err = c.Units()
		return err
	})
	return units
}

// Healthy waits until all Components of the machine are ready, and then until its node is.
func (c *Cluster) Healthy(limit time.Duration) {
	c.T.Helper()
	testkit.Until(c.T, limit, "every component is ready", func() error {
		units, err := c.Units()
		if err != nil {
			return err
		}
		for _, name := range Components() {
			if u, ok := units[name]; !ok || !u.Ready || u.PID == 0 {
				return fmt.Errorf("unit %s is not ready: %+v", name, u)
			}
		}
		return nil
	})
	c.Wait("node/"+c.Node, "condition=Ready")
}

// Web is a Deployment of two pods, each of which answers with its name, and the Service web. It needs [Cluster.ImportTestImage].
const Web = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: web, image: "` + TestImage + `", imagePullPolicy: Never, args: [serve], ports: [{containerPort: 8080}],
         readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}}
` + WebService

// WebService is the Service web, port 80, of the pods with the label app=web.
const WebService = `---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`

// Reader is a service account that may only get and list pods.
const Reader = `---
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: default}
rules: [{apiGroups: [""], resources: [pods], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: default}]
`
