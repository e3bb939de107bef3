// SPDX-License-Identifier: Apache-2.0

// Package cluster_test tells the first story: what a user has after slipway up, and what nobody gets.
package cluster_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/testkit"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

// workload is what the story runs: two pods behind a Service, a client, a question to DNS, and a reader's rights.
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
metadata: {name: question, namespace: default}
spec:
  restartPolicy: Never
  containers:
  - {name: question, image: "slipway.dev/testpod:1", imagePullPolicy: Never,
     args: [lookup, --retry-for, 60s, kubernetes.default.svc.cluster.local]}
` + kit.Reader

// TestCluster boots once; the parts build on each other in this order.
func TestCluster(t *testing.T) {
	c := kit.New(t, "cluster")
	up := c.MustUp()
	t.Logf("up:\n%s", up.Out)
	for i, part := range []struct {
		name string
		test func(t *testing.T, c *kit.Cluster)
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
		{"strangers", strangers},
		{"a kubelet does not open etcd", kubeletAndEtcd},
		{"ports", ports},
		{"another up changes nothing", upAgain},
		{"an edited flag restarts one component", editedFlag},
		{"the user's commands", commands},
	} {
		passed := t.Run(part.name, func(t *testing.T) {
			mine := *c
			mine.T = t
			part.test(t, &mine)
		})
		if !passed && i < 2 {
			t.Fatal("without pods there is nothing to tell")
		}
	}
}

func nodeIsReady(_ *testing.T, c *kit.Cluster) {
	c.Healthy(30 * time.Second)
	c.Wait("node/"+c.Node, "condition=Ready")
}

func pods(t *testing.T, c *kit.Cluster) {
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
				t.Fatalf("%s answers %q", url, name)
			}
			if answered[name] = true; len(answered) < 2 {
				return fmt.Errorf("only %s has answered", name)
			}
			return nil
		})
	}
}

// reader tries with a token, as a program in a pod has one, and kubectl --as agrees.
func reader(t *testing.T, c *kit.Cluster) {
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
		if code, body := c.HTTPS(t, want.method, apiServer+want.path, kit.BearerToken(token)); code != want.code {
			t.Errorf("%s %s as reader: %d, want %d: %s", want.method, want.path, code, want.code, body)
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

func staticPod(t *testing.T, c *kit.Cluster) {
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
		t.Errorf("pod %s is no mirror pod", mirror)
	}
}

func logsAndExec(t *testing.T, c *kit.Cluster) {
	c.Wait("pod/question", "jsonpath={.status.phase}=Succeeded")
	if said := c.Kubectl("logs", "question"); !strings.HasPrefix(said, "10.96.0.1 ") {
		t.Errorf("log of question: %q, want the address of the API server's Service", said)
	}
	if said := c.Kubectl("exec", "client", "--", "/testpod", "lookup", "web"); strings.TrimSpace(said) == "" {
		t.Error("exec in client says nothing")
	}
	if said := c.Slipway("logs", "kubelet").Out; said == "" {
		t.Error("slipway logs kubelet says nothing")
	}
}

func seccomp(t *testing.T, c *kit.Cluster) {
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
	for port, want := range map[string]string{"8099": "2", "8098": "0"} { // 2: a filter, 0: none
		p := c.Process("testpod", "serve", "--port", port)
		status := c.Exec(fmt.Sprintf("cat /proc/%d/status", p.Inside))
		if !strings.Contains(status, "Seccomp:\t"+want) {
			t.Errorf("pod at port %s: want Seccomp: %s\n%s", port, want, status)
		}
	}
}

func upAgain(t *testing.T, c *kit.Cluster) {
	before := units(t, c)
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
		t.Errorf("second up: %+v, want no change", result)
	}
	if r := c.MustUp(); !strings.Contains(r.Out, "nothing to do") {
		t.Errorf("third up does not say that nothing is to do: %s", r)
	}
	after := units(t, c)
	for name, u := range before {
		if after[name].PID != u.PID {
			t.Errorf("%s: pid %d, then %d", name, u.PID, after[name].PID)
		}
	}
}

func units(t *testing.T, c *kit.Cluster) map[string]kit.Unit {
	t.Helper()
	return c.For(t).MustUnits()
}

// commands are those that one uses on a running cluster; each says what it is for.
func commands(t *testing.T, c *kit.Cluster) {
	for name, x := range map[string]struct {
		args []string
		code int
		says string
	}{
		"kubectl":        {[]string{"kubectl", "get", "nodes", "--output", "name"}, 0, "node/" + c.Node},
		"kubectl fails":  {[]string{"kubectl", "get", "unicorns"}, 1, "unicorns"},
		"exec":           {[]string{"exec", "--", "uname", "-n"}, 0, c.Node},
		"exec fails":     {[]string{"exec", "--", "sh", "-c", "exit 7"}, 7, ""},
		"list":           {[]string{"status", "--output", "yaml"}, 0, "ready: true"},
		"logs":           {[]string{"logs", "agent"}, 0, "converged"},
		"logs of what":   {[]string{"logs", "unicorn"}, 1, "kube-apiserver"},
		"kubeconfig":     {[]string{"kubeconfig", "--path"}, 0, c.Kubeconfig()},
		"plan":           {[]string{"plan"}, 0, "kube-apiserver"},
		"diff":           {[]string{"diff", "--output", "json"}, 0, `"steps": []`},
		"why item":       {[]string{"why", "kubelet"}, 0, "containerd"},
		"why flag":       {[]string{"why", "scheduler.flags.v"}, 0, "user"}, // an earlier part has edited it
		"why default":    {[]string{"why", "apiserver.flags.audit-log-path"}, 0, "default"},
		"trace":          {[]string{"trace"}, 0, ""},
		"wait":           {[]string{"wait", "--for", "cluster"}, 0, ""},
		"version":        {[]string{"version"}, 0, "1.36.4"},
		"another's name": {[]string{"exec", "no-such-machine", "--", "true"}, 1, c.Node},
	} {
		if r := c.Slipway(x.args...); r.Code != x.code || !strings.Contains(r.Out+r.Err, x.says) {
			t.Errorf("%s: want exit code %d and %q: %s", name, x.code, x.says, r)
		}
	}

	merged := filepath.Join(t.TempDir(), "config")
	t.Setenv("KUBECONFIG", merged)
	if r := c.Slipway("kubeconfig", "--merge"); r.Code != 0 {
		t.Error(r)
	}
	if r := kit.Run(t, kit.Component(t, "kubectl"), "get", "nodes", "--output", "name"); r.Code != 0 || !strings.Contains(r.Out, c.Node) {
		t.Errorf("kubectl with the merged kubeconfig: %s", r)
	}
}

// editedFlag edits a flag and then a field of a configuration file; each restarts the component that reads it, and no other.
func editedFlag(t *testing.T, c *kit.Cluster) {
	const head = "apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: %s}\nspec:\n  components:\n%s"
	for _, edit := range []struct{ component, spec string }{
		{"kube-scheduler", "    scheduler: {flags: {v: 1}}\n"},
		{"kube-proxy", "    scheduler: {flags: {v: 1}}\n    kubeProxy: {config: {configSyncPeriod: 14m}}\n"},
	} {
		file := filepath.Join(t.TempDir(), "cluster.yaml")
		if err := os.WriteFile(file, fmt.Appendf(nil, head, c.Name, edit.spec), 0o600); err != nil {
			t.Fatal(err)
		}
		before := units(t, c)
		c.MustUp("--file", file)
		c.Healthy(30 * time.Second)
		var restarted []string
		for name, u := range units(t, c) {
			if before[name].PID != u.PID {
				restarted = append(restarted, name)
			}
		}
		if !slices.Equal(restarted, []string{edit.component}) {
			t.Errorf("restarted: %v, want only %s, after this edit:\n%s", restarted, edit.component, edit.spec)
		}
	}
}
