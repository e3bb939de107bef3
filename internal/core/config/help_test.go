// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/bintest"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// TestFlagsAreKnown asks the real binaries (see package bintest): a component ends on a flag that it does not know.
func TestFlagsAreKnown(t *testing.T) {
	t.Parallel()
	dir := bintest.Dir(t, "kube", "etcd", "containerd")
	c := rich(t)
	for name, x := range map[string]struct {
		command   []string
		component spec.Component
	}{
		"etcd":              {[]string{"etcd"}, c.Etcd},
		"apiserver":         {[]string{"kube", "kube-apiserver"}, c.APIServer},
		"controllerManager": {[]string{"kube", "kube-controller-manager"}, c.ControllerManager},
		"scheduler":         {[]string{"kube", "kube-scheduler"}, c.Scheduler},
		"kubelet":           {[]string{"kube", "kubelet"}, c.Kubelet},
		"kubeProxy":         {[]string{"kube", "kube-proxy"}, c.KubeProxy},
		"containerd":        {[]string{"containerd"}, c.Containerd},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := append(x.command[1:], "--help")
			help, err := exec.CommandContext(t.Context(), filepath.Join(dir, x.command[0]), args...).CombinedOutput()
			if err != nil {
				t.Fatalf("%v %v: %v", x.command, args, err)
			}
			known := map[string]bool{}
			for _, m := range regexp.MustCompile(`(?m)^\s+(?:-\w, )?--([a-z0-9-]+)`).FindAllSubmatch(help, -1) {
				known[string(m[1])] = true
			}
			if len(known) < 5 || len(x.component.Flags) == 0 {
				t.Fatalf("help names %d flags, the component has %d", len(known), len(x.component.Flags))
			}
			for flag := range x.component.Flags {
				if !known[flag] {
					t.Errorf("--%s is not in --help", flag)
				}
			}
		})
	}
}

// TestConfigsAreStrict: the kubelet and kube-proxy fall back to lenient decoding when a field is unknown, and only the log
// tells; the scheduler ends. None of the three gets far enough here to touch the machine.
func TestConfigsAreStrict(t *testing.T) {
	t.Parallel()
	dir, c := bintest.Dir(t, "kube"), rich(t)
	c.Kubelet.Config["authentication"] = map[string]any{} // its client CA would have to exist
	for name, x := range map[string]struct {
		component spec.Component
		args      []string
		want      string // what the log says when all is well
	}{
		"kube-scheduler": {c.Scheduler, []string{"--write-config-to=OUT", "--authentication-kubeconfig=KUBECONFIG", "--authorization-kubeconfig=KUBECONFIG", "--cert-dir=TMP"}, "Wrote configuration"},
		"kube-proxy":     {c.KubeProxy, []string{"--write-config-to=OUT"}, "Wrote configuration"},
		"kubelet":        {c.Kubelet, []string{"--kubeconfig=TMP/none"}, "unable to load kubeconfig"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tmp := t.TempDir()
			if connection, ok := x.component.Config["clientConnection"].(map[string]any); ok {
				connection["kubeconfig"] = tmp + "/kubeconfig"
			}
			doc, err := json.Marshal(x.component.Config)
			if err != nil {
				t.Fatal(err)
			}
			for file, text := range map[string]string{"config": string(doc), "kubeconfig": kubeconfig} {
				if err := os.WriteFile(filepath.Join(tmp, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			paths := strings.NewReplacer("OUT", tmp+"/out", "KUBECONFIG", tmp+"/kubeconfig", "TMP", tmp)
			args := []string{name, "--config=" + tmp + "/config"}
			for _, a := range x.args {
				args = append(args, paths.Replace(a))
			}
			log, _ := exec.CommandContext(t.Context(), filepath.Join(dir, "kube"), args...).CombinedOutput() // the log tells more than the status
			if !bytes.Contains(log, []byte(x.want)) || bytes.Contains(log, []byte("lenient")) {
				t.Errorf("%s", log)
			}
		})
	}
}

const kubeconfig = `{apiVersion: v1, kind: Config, current-context: a, clusters: [{name: a, cluster: {server: "https://127.0.0.1:1"}}],
contexts: [{name: a, context: {cluster: a, user: a}}], users: [{name: a, user: {token: none}}]}`

// rich is one node's configuration with everything in it that the tables can add.
func rich(t *testing.T) config.Cluster {
	t.Helper()
	return node(t, spec.Cluster{
		Name: "dev", Spec: spec.Spec{
			FeatureGates: map[string]bool{"AllAlpha": false},
			Pools:        []spec.Pool{{Name: "main", Roles: []string{"control-plane"}, Labels: map[string]string{"example.org/a": "b"}}},
		},
	}, machine.Facts{CgroupV1: true, UpstreamDNS: true}).Cluster
}

func node(t *testing.T, s spec.Cluster, f machine.Facts) config.Node {
	t.Helper()
	c, problems := config.Complete(s, release)
	if len(problems) > 0 {
		t.Fatal(lines(problems))
	}
	if !f.Address.IsValid() {
		f.Address = netip.MustParseAddr("192.168.7.1")
	}
	n, err := config.ForNode(c, c.Pools[0].Nodes[0].Name, f)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
