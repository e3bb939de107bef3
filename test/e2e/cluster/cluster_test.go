// SPDX-License-Identifier: Apache-2.0

// Package cluster_test tests what a user gets from slipway up on one machine, and what unauthenticated clients do not get.
package cluster_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/testkit"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

// workload is two pods behind a Service, a client pod, a pod that looks up a name, and a read-only service account.
const workload = kit.Web + `---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: default}
spec:
  containers:
  - {name: client, image: "slipway.dev/testpod:1", imagePullPolicy: Never, args: [sleep]}
---
apiVersion: v1
kind: Pod
metadata: {name: lookup, namespace: default}
spec:
  restartPolicy: Never
  containers:
  - {name: lookup, image: "slipway.dev/testpod:1", imagePullPolicy: Never,
     args: [lookup, --retry-for, 60s, kubernetes.default.svc.cluster.local]}
` + kit.Reader

// TestCluster boots one cluster. Its parts depend on each other in this order.
func TestCluster(t *testing.T) {
	c := kit.New(t, "cluster")
	up := c.MustUp()
	t.Logf("up:\n%s", up.Out)
	for i, part := range []struct {
		name string
		test func(c *kit.Cluster)
	}{
		{"node is ready", nodeIsReady},
		{"pods reach a service by name and address", pods},
		{"a reader reads and cannot delete", reader},
		{"a user's static pod runs", staticPod},
		{"logs and exec", logsAndExec},
		{"a secret is unreadable in etcd", secretInEtcd},
		{"seccomp", seccomp},
		{"key files", keyFiles},
		{"no key leaks", noKeyLeaks},
		{"unauthenticated clients", unauthenticated},
		{"a kubelet does not open etcd", kubeletAndEtcd},
		{"ports", ports},
		{"another up changes nothing", upAgain},
		{"an edited flag restarts one component", editedFlag},
		{"the user's commands", commands},
	} {
		if passed := c.Part(t, part.name, part.test); !passed && i < 2 {
			t.Fatal("the other parts need pods")
		}
	}
}

func nodeIsReady(c *kit.Cluster) {
	c.Healthy(30 * time.Second)
	c.Wait("node/"+c.Node, "condition=Ready")
}

func pods(c *kit.Cluster) {
	t := c.T
	c.ImportTestImage()
	c.Apply(workload)
	c.Wait("deployment/web", "condition=Available")
	c.Wait("pod/client", "condition=Ready")
	address := c.Kubectl("get", "service", "web", "--output", "jsonpath={.spec.clusterIP}")
	for _, url := range []string{"http://web.default.svc.cluster.local", "http://web", "http://" + address} {
		answered := map[string]bool{}
		testkit.Until(t, time.Minute, "both pods answer at "+url, func() error {
			name := strings.TrimSpace(c.Kubectl("exec", "client", "--", "/testpod", "get", "--retry-for", "30s", url))
			if !strings.HasPrefix(name, "web-") {
				t.Fatalf("answer of %s: got %q, want web-…", url, name)
			}
			if answered[name] = true; len(answered) < 2 {
				return fmt.Errorf("got answers of %s only", name)
			}
			return nil
		})
	}
}

// reader uses a token, as a program in a pod does, and then kubectl --as.
func reader(c *kit.Cluster) {
	t := c.T
	token := strings.TrimSpace(c.Kubectl("create", "token", "reader"))
	const pods = "/api/v1/namespaces/default/pods"
	for _, want := range []struct {
		method, path string
		code         int
	}{
		{"GET", pods, 200},
		{"DELETE", pods + "/client", 403},
		{"GET", "/api/v1/namespaces/default/secrets", 403},
		{"GET", "/api/v1/namespaces/kube-system/pods", 403},
	} {
		if code, body := c.HTTPS(want.method, apiServer+want.path, kit.BearerToken(token)); code != want.code {
			t.Errorf("%s %s as reader: got %d, want %d: %s", want.method, want.path, code, want.code, body)
		}
	}
	const as = "--as=system:serviceaccount:default:reader"
	if r := c.TryKubectl("", as, "get", "pods"); r.Code != 0 || !strings.Contains(r.Out, "client") {
		t.Error(r)
	}
	if r := c.TryKubectl("", as, "delete", "pod", "client"); r.Code == 0 || !strings.Contains(r.Err, "Forbidden") {
		t.Error(r)
	}
}

func staticPod(c *kit.Cluster) {
	t := c.T
	c.ExecIn(strings.NewReader(`
apiVersion: v1
kind: Pod
metadata: {name: mine, namespace: default}
spec: {containers: [{name: mine, image: "slipway.dev/testpod:1", imagePullPolicy: Never, args: [sleep]}]}
`), "cat > /etc/kubernetes/manifests/.mine && mv /etc/kubernetes/manifests/.mine /etc/kubernetes/manifests/mine.yaml")
	mirror := "mine-" + c.Node
	testkit.Until(t, time.Minute, "the mirror pod appears", func() error {
		if r := c.TryKubectl("", "get", "pod", mirror); r.Code != 0 {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
	c.Wait("pod/"+mirror, "condition=Ready")
	if a := c.Kubectl("get", "pod", mirror, "--output", `jsonpath={.metadata.annotations.kubernetes\.io/config\.mirror}`); a == "" {
		t.Errorf("pod %s is not a mirror pod", mirror)
	}
}

func logsAndExec(c *kit.Cluster) {
	t := c.T
	c.Wait("pod/lookup", "jsonpath={.status.phase}=Succeeded")
	if got := c.Kubectl("logs", "lookup"); !strings.HasPrefix(got, "10.96.0.1 ") {
		t.Errorf("log of pod lookup: got %q, want the address of the API server's Service", got)
	}
	if got := c.Kubectl("exec", "client", "--", "/testpod", "lookup", "web"); strings.TrimSpace(got) == "" {
		t.Error("kubectl exec in pod client: got no output")
	}
	if got := c.Slipway("logs", "kubelet").Out; got == "" {
		t.Error("slipway logs kubelet: got no output")
	}
}

func seccomp(c *kit.Cluster) {
	t := c.T
	c.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: confined, namespace: default}
spec:
  securityContext: {seccompProfile: {type: RuntimeDefault}}
  containers:
  - {name: confined, image: "slipway.dev/testpod:1", imagePullPolicy: Never, args: [serve, --port, "8099"]}
---
apiVersion: v1
kind: Pod
metadata: {name: free, namespace: default}
spec:
  securityContext: {seccompProfile: {type: Unconfined}}
  containers:
  - {name: free, image: "slipway.dev/testpod:1", imagePullPolicy: Never, args: [serve, --port, "8098"]}
`)
	c.Wait("pod/confined", "condition=Ready")
	c.Wait("pod/free", "condition=Ready")
	for port, want := range map[string]string{"8099": "2", "8098": "0"} { // 2: filtered, 0: unconfined
		p := c.Process("testpod", "serve", "--port", port)
		status := c.Exec(fmt.Sprintf("cat /proc/%d/status", p.MachinePID))
		if !strings.Contains(status, "Seccomp:\t"+want) {
			t.Errorf("pod on port %s: want Seccomp: %s, got\n%s", port, want, status)
		}
	}
}

func upAgain(c *kit.Cluster) {
	t := c.T
	before := c.MustUnits()
	r := c.MustUp("--output", "json")
	var result struct {
		Changed bool `json:"changed"`
		Ready   bool `json:"ready"`
		Steps   int  `json:"steps"`
	}
	if err := json.Unmarshal([]byte(r.Out), &result); err != nil {
		t.Fatalf("%v: %s", err, r)
	}
	if result.Changed || result.Steps != 0 || !result.Ready {
		t.Errorf("second up: got %+v, want no change", result)
	}
	c.UpToDate()
	after := c.MustUnits()
	for name, u := range before {
		if after[name].PID != u.PID {
			t.Errorf("PID of %s: got %d, want %d as before", name, after[name].PID, u.PID)
		}
	}
}

// commands runs each command that users run on a running cluster.
func commands(c *kit.Cluster) {
	t := c.T
	for name, x := range map[string]struct {
		args []string
		code int
		want string
	}{
		"kubectl":       {[]string{"kubectl", "get", "nodes", "--output", "name"}, 0, "node/" + c.Node},
		"kubectl fails": {[]string{"kubectl", "get", "unicorns"}, 1, "unicorns"},
		"exec":          {[]string{"exec", "--", "uname", "-n"}, 0, c.Node},
		"exec fails":    {[]string{"exec", "--", "sh", "-c", "exit 7"}, 7, ""},
		"list":          {[]string{"status", "--output", "yaml"}, 0, "ready: true"},
		"logs":          {[]string{"logs", "agent"}, 0, "converged"},
		"logs of none":  {[]string{"logs", "unicorn"}, 1, "kube-apiserver"},
		"kubeconfig":    {[]string{"kubeconfig", "--path"}, 0, c.Kubeconfig()},
		"plan":          {[]string{"plan"}, 0, "kube-apiserver"},
		"diff":          {[]string{"diff", "--output", "json"}, 0, `"steps": []`},
		"why item":      {[]string{"why", "kubelet"}, 0, "containerd"},
		"why flag":      {[]string{"why", "scheduler.flags.v"}, 0, "user"}, // editedFlag has set it
		"why default":   {[]string{"why", "apiserver.flags.audit-log-path"}, 0, "default"},
		"trace":         {[]string{"trace"}, 0, ""},
		"wait":          {[]string{"wait", "--for", "cluster"}, 0, ""},
		"version":       {[]string{"version"}, 0, "1.36.4"},
		"wrong machine": {[]string{"exec", "no-such-machine", "--", "true"}, 1, c.Node},
	} {
		if r := c.Slipway(x.args...); r.Code != x.code || !strings.Contains(r.Out+r.Err, x.want) {
			t.Errorf("%s: want exit code %d and %q, got %s", name, x.code, x.want, r)
		}
	}

	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "config"))
	if r := c.Slipway("kubeconfig", "--merge"); r.Code != 0 {
		t.Error(r)
	}
	if r := kit.Run(t, kit.Component(t, "kubectl"), "get", "nodes", "--output", "name"); r.Code != 0 || !strings.Contains(r.Out, c.Node) {
		t.Errorf("kubectl with the merged kubeconfig: %s", r)
	}
}

// editedFlag edits a flag and then a field of a configuration file. Each edit restarts only the component that reads it.
func editedFlag(c *kit.Cluster) {
	t := c.T
	const head = "apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: %s}\nspec:\n  components:\n%s"
	for _, edit := range []struct{ component, spec string }{
		{"kube-scheduler", "    scheduler: {flags: {v: 1}}\n"},
		{"kube-proxy", "    scheduler: {flags: {v: 1}}\n    kubeProxy: {config: {configSyncPeriod: 14m}}\n"},
	} {
		before := c.MustUnits()
		c.MustUp("--file", c.Spec(fmt.Sprintf(head, c.Name, edit.spec)))
		c.Healthy(30 * time.Second)
		var restarted []string
		for name, u := range c.MustUnits() {
			if before[name].PID != u.PID {
				restarted = append(restarted, name)
			}
		}
		if !slices.Equal(restarted, []string{edit.component}) {
			t.Errorf("restarted: got %v, want only %s, after this edit:\n%s", restarted, edit.component, edit.spec)
		}
	}
}
