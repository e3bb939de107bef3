// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

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
