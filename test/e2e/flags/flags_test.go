// SPDX-License-Identifier: Apache-2.0

// Package flags_test asks the real programs whether they know what slipway gives them: a component ends on a flag that it
// does not know, and the kubelet and kube-proxy only whisper of a field that they do not know.
package flags_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

// rich sets something of everything.
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
			asked := 0
			for _, args := range commandLines(t, args) {
				program := filepath.Base(args[0])
				known := help(t, program)
				for _, arg := range args[1:] {
					flag, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
					if asked++; !known[flag] {
						t.Errorf("%s does not know --%s", program, flag)
					}
				}
			}
			if asked < 120 {
				t.Errorf("only %d flags were asked for", asked)
			}
		})
	}
}

// commandLines are those of all components of a plan.
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
		t.Fatalf("%d components, want %v", len(lines), want)
	}
	return lines
}

var flagInHelp = regexp.MustCompile(`(?m)^\s+(?:-\w, )?--([a-z0-9-]+)`)

// help is the set of flags that a program names in --help.
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
		t.Fatalf("help of %s names %d flags: %s", program, len(known), r)
	}
	return known
}
