// SPDX-License-Identifier: Apache-2.0

// Package spec_test checks which specs and commands slipway refuses, with which exit code, and that a refusal changes nothing.
package spec_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

const badSpec = `apiVersion: slipway.dev/v1alpha1
kind: Cluster
metadata: {name: e2e-spec}
spec:
  kubernetsVersion: "1.36"
  networking: {podCIDR: 10.244.0.0/33}
  components:
    scheduler: {flags: {no-such-flag: 1}}
  pools:
  - {name: main, count: many}
`

func TestRefused(t *testing.T) {
	c := kit.New(t, "spec")
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte(badSpec), 0o600); err != nil {
		t.Fatal(err)
	}
	const unsuitable = "/dev/shm/e2e-spec" // slipway refuses a tmpfs
	for name, x := range map[string]struct {
		command []string
		code    int
		want    []string
	}{
		"bad spec": {[]string{c.Bin, "up", "--name", c.Name, "--file", bad}, 3, []string{
			bad + ":5:3: spec.kubernetsVersion: unknown field", `did you mean "kubernetesVersion"`,
			bad + ":6:16: spec.networking.podCIDR:", bad + ":10:18: spec.pools[0].count:",
		}},
		"no spec":         {[]string{c.Bin, "up", "--name", c.Name, "--file", bad + ".none"}, 1, []string{bad + ".none"}},
		"unknown version": {[]string{c.Bin, "up", "--name", c.Name, "--kubernetes-version", "1.2"}, 3, []string{"1.2", "1.36"}},
		"unknown flag":    {[]string{c.Bin, "up", "--nome", c.Name}, 2, []string{"--nome", "slipway up --help"}},
		"unknown cluster": {[]string{c.Bin, "status", "--name", c.Name}, 1, []string{c.Name, "slipway up --name " + c.Name}},
		"unsuitable root": {[]string{c.Bin, "--root", unsuitable, "up", "--name", c.Name, "--no-install"}, 4, []string{"tmpfs", "remedy"}},
		"all problems at once": {
			[]string{"setpriv", "--bounding-set=-sys_admin,-net_admin", c.Bin, "--root", unsuitable, "up", "--name", c.Name, "--no-install"},
			4,
			[]string{"CAP_SYS_ADMIN", "CAP_NET_ADMIN", "tmpfs", "; nothing has been "},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := kit.Run(t, x.command[0], x.command[1:]...)
			if r.Code != x.code {
				t.Errorf("want exit code %d, got %s", x.code, r)
			}
			for _, want := range x.want {
				if !strings.Contains(r.Err, want) {
					t.Errorf("standard error: want %q, got %s", want, r)
				}
			}
			for _, path := range []string{unsuitable, kit.Root + "/clusters/" + c.Name, kit.Root + "/machines/" + c.Name} {
				if _, err := os.Lstat(path); !os.IsNotExist(err) {
					t.Errorf("%s: got %v, want no such file", path, err)
				}
			}
		})
	}
}

// TestWait checks that a command that times out reports what is not ready, and that the work continues without it.
func TestWait(t *testing.T) {
	c := kit.New(t, "wait")
	r := c.Slipway("up", "--wait", "1ms")
	if r.Code != 5 || !strings.Contains(r.Err, "Not ready") || !strings.Contains(r.Err, "slipway status --name "+c.Name) {
		t.Errorf("up --wait 1ms: want exit code 5 and what is not ready, got %s", r)
	}
	if r := c.Slipway("wait", "--for", "node/"+c.Node, "--timeout", "1ms"); r.Code != 5 {
		t.Errorf("wait --timeout 1ms: want exit code 5, got %s", r)
	}
	if r := c.Slipway("wait", "--for", "node/"+c.Node, "--timeout", "2m"); r.Code != 0 {
		t.Errorf("wait for the node: %s", r)
	}
	if r := c.Slipway("wait", "--for", "cluster", "--timeout", "2m"); r.Code != 0 {
		t.Errorf("wait for the cluster: %s", r)
	}
	if r := c.Slipway("status"); r.Code != 0 || !strings.Contains(r.Out, "is ready") {
		t.Errorf("status after wait: want \"is ready\", got %s", r)
	}
	c.UpToDate()
	c.Healthy(30 * time.Second)

	c.Part(t, "an immutable field", func(c *kit.Cluster) {
		file := c.Spec("apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: " + c.Name + "}\nspec: {networking: {serviceCIDR: 10.99.0.0/16}}\n")
		if r := c.Up("--file", file); r.Code != 3 || !strings.Contains(r.Err, "spec.networking.serviceCIDR: 10.99.0.0/16, was 10.96.0.0/16") {
			c.T.Errorf("up with another serviceCIDR: want exit code 3 and the field, got %s", r)
		}
		c.UpToDate()
	})
}
