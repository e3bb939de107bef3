// SPDX-License-Identifier: Apache-2.0

// Package flags_test checks that the real programs know the flags and configuration fields that slipway gives them. A component exits on
// an unknown flag, but the kubelet and kube-proxy only log an unknown field.
package flags_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

// rich is a spec with fields of every kind.
const rich = `apiVersion: slipway.dev/v1alpha1
kind: Cluster
metadata: {name: e2e-flags}
spec:
  networking: {podCIDR: 10.45.0.0/16, serviceCIDR: 10.97.0.0/16, clusterDomain: example.internal}
  pools:
  - name: main
    labels: {example.org/rack: r7}
    taints: [{key: example.org/soft, value: a, effect: PreferNoSchedule}]
  controlPlane: {extraSANs: [api.example.org, 203.0.113.9]}
  featureGates: {AllAlpha: false}
  addOns:
  - name: motd
    manifest: |
      apiVersion: v1
      kind: ConfigMap
      metadata: {name: motd, namespace: default}
      data: {text: from the spec}
  components:
    etcd:
      flags: {quota-backend-bytes: 4294967296, snapshot-count: 5000, log-level: info}
      env: {GOGC: 80}
    apiserver:
      flags: {v: 1, max-requests-inflight: 500, audit-log-maxage: 7, event-ttl: 30m, enable-admission-plugins: "NodeRestriction,DenyServiceExternalIPs"}
    controllerManager:
      flags: {concurrent-deployment-syncs: 7, terminated-pod-gc-threshold: 50, leader-elect: true, v: 1}
    scheduler:
      flags: {v: 1}
      config: {percentageOfNodesToScore: 50, profiles: [{schedulerName: default-scheduler}, {schedulerName: second}]}
    kubelet:
      flags: {v: 1}
      config: {maxPods: 60, evictionHard: {memory.available: 200Mi}, systemReserved: {cpu: 100m}, containerLogMaxFiles: 3}
    kubeProxy:
      flags: {v: 1}
      config: {configSyncPeriod: 10m, nftables: {syncPeriod: 20s}}
    containerd: {flags: {log-level: info}}
    coredns: {replicas: 2}
`

func TestFlagsAreKnown(t *testing.T) {
	kit.NeedRoot(t)
	file := filepath.Join(t.TempDir(), "rich.yaml")
	if err := os.WriteFile(file, []byte(rich), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{"default": {"--name", "e2e-flags"}, "rich": {"--file", file}} {
		t.Run(name, func(t *testing.T) {
			checked := 0
			for _, args := range commandLines(t, args) {
				program := filepath.Base(args[0])
				known := help(t, program)
				for _, arg := range args[1:] {
					flag, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
					if checked++; !known[flag] {
						t.Errorf("flag --%s of %s: not in its --help", flag, program)
					}
				}
			}
			if checked < 120 {
				t.Errorf("checked flags: got %d, want at least 120", checked)
			}
		})
	}
}

// commandLines returns the command lines of all components in a plan.
func commandLines(t *testing.T, args []string) [][]string {
	t.Helper()
	r := kit.Run(t, kit.Binary(t), append([]string{"plan", "--output", "json"}, args...)...)
	var plan struct {
		Entries []struct {
			Kind string
			Item struct {
				Args    []string
				Oneshot bool
			}
		}
	}
	if err := json.Unmarshal([]byte(r.Out), &plan); err != nil || r.Code != 0 {
		t.Fatalf("%v: %s", err, r)
	}
	var lines [][]string
	for _, e := range plan.Entries {
		if e.Kind == "unit" && !e.Item.Oneshot {
			lines = append(lines, e.Item.Args)
		}
	}
	if want := kit.Components(); len(lines) != len(want) {
		t.Fatalf("components: got %v, want %v", lines, want)
	}
	return lines
}

var flagInHelp = regexp.MustCompile(`(?m)^\s+(?:-\w, )?--([a-z0-9-]+)`)

// help returns the flags that a program lists in --help.
func help(t *testing.T, program string) map[string]bool {
	t.Helper()
	binary, args := program, []string{"--help"}
	if strings.HasPrefix(program, "kube") { // one binary under several names
		binary, args = "kube", []string{program, "--help"}
	}
	r := kit.Run(t, kit.Component(t, binary), args...)
	known := map[string]bool{}
	for _, m := range flagInHelp.FindAllStringSubmatch(r.Out+r.Err, -1) {
		known[m[1]] = true
	}
	if r.Code != 0 || len(known) < 5 || known["no-such-flag"] {
		t.Fatalf("flags in the help of %s: got %d, want at least 5: %s", program, len(known), r)
	}
	return known
}

// TestRichSpecBoots checks that the fields of a spec take effect in a running cluster.
func TestRichSpecBoots(t *testing.T) {
	c := kit.New(t, "flags")
	c.MustUp("--file", c.Spec(rich)) // it waits until the cluster DNS answers for example.internal
	c.Healthy(30 * time.Second)

	t.Run("flags", func(t *testing.T) {
		for program, flags := range map[string][]string{
			"etcd":                    {"--quota-backend-bytes=4294967296", "--snapshot-count=5000"},
			"kube-apiserver":          {"--max-requests-inflight=500", "--service-cluster-ip-range=10.97.0.0/16", "--event-ttl=30m"},
			"kube-controller-manager": {"--concurrent-deployment-syncs=7", "--leader-elect=true"},
			"kube-scheduler":          {"--v=1"}, "kubelet": {"--v=1"}, "kube-proxy": {"--v=1"}, "containerd": {"--log-level=info"},
		} {
			args := c.Process(program).Args
			for _, flag := range flags {
				if !slices.Contains(args, flag) {
					t.Errorf("arguments of %s: got %v, want %s", program, args, flag)
				}
			}
		}
		if env, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(c.Process("etcd").PID), "environ")); err != nil || !slices.Contains(strings.Split(string(env), "\x00"), "GOGC=80") {
			t.Errorf("environment of etcd: got %q, %v, want GOGC=80", env, err)
		}
	})
	t.Run("config files are decoded strictly", func(t *testing.T) {
		for _, program := range []string{"kubelet", "kube-proxy", "kube-scheduler"} {
			log := string(c.Read("log", "slipway", program+".log"))
			if strings.Contains(log, "lenient") || strings.Contains(log, "unknown field") {
				t.Errorf("%s logs an unknown field of its configuration file:\n%s", program, log)
			}
		}
		var now struct {
			KubeletConfig struct {
				MaxPods              int
				ContainerLogMaxFiles int
				EvictionHard         map[string]string
				SystemReserved       map[string]string
				ClusterDomain        string
			}
		}
		text := c.Kubectl("get", "--raw", "/api/v1/nodes/"+c.Node+"/proxy/configz")
		if err := json.Unmarshal([]byte(text), &now); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		k := now.KubeletConfig
		if k.MaxPods != 60 || k.ContainerLogMaxFiles != 3 || k.EvictionHard["memory.available"] != "200Mi" || k.EvictionHard["nodefs.available"] == "" ||
			k.SystemReserved["cpu"] != "100m" || k.ClusterDomain != "example.internal" {
			t.Errorf("configuration of the kubelet: got %+v", k)
		}
		admin := kit.Certificate("etc-kubernetes/pki/super-admin")
		for url, want := range map[string]string{
			"https://127.0.0.1:10259/configz": `"schedulerName":"second"`, "https://127.0.0.1:10257/configz": `"ConcurrentDeploymentSyncs":7`,
		} {
			if code, body := c.HTTPS("GET", url, admin); code != 200 || !strings.Contains(strings.ToLower(body), strings.ToLower(want)) {
				t.Errorf("%s: want 200 and %s, got %d: %s", url, want, code, body)
			}
		}
	})
	t.Run("node, names and add-ons", func(t *testing.T) {
		for _, x := range []struct{ what, path, want string }{
			{"node/" + c.Node, `{.metadata.labels.example\.org/rack}`, "r7"},
			{"node/" + c.Node, `{.spec.taints[?(@.key=="example.org/soft")].effect}`, "PreferNoSchedule"},
			{"node/" + c.Node, `{.status.capacity.pods}`, "60"},
			{"node/" + c.Node, `{.spec.podCIDR}`, "10.45.0.0/24"},
			{"configmap/motd", `{.data.text}`, "from the spec"},
			{"service/kubernetes", `{.spec.clusterIP}`, "10.97.0.1"},
			{"deployment/coredns --namespace=kube-system", `{.spec.replicas}`, "2"},
		} {
			got := c.Kubectl(append(append([]string{"get"}, strings.Fields(x.what)...), "--output", "jsonpath="+x.path)...)
			if got != x.want {
				t.Errorf("%s %s: got %q, want %q", x.what, x.path, got, x.want)
			}
		}
		for _, name := range []string{"api.example.org", "203.0.113.9", "kubernetes.default.svc.example.internal", "10.97.0.1", "127.0.0.1"} {
			if code, _ := c.HTTPS("GET", "https://127.0.0.1:6443/livez", kit.ServerName(name)); code != 200 {
				t.Errorf("API server under the name %s: got %d, want 200", name, code)
			}
		}
	})
}
