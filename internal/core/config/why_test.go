// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/golden"
)

func TestWhy(t *testing.T) {
	t.Parallel()
	c, problems := complete(t, golden.Input(golden.Read(t)["overrides"]))
	if len(problems) > 0 {
		t.Fatal(lines(problems))
	}
	for path, want := range map[string]string{
		"apiserver.flags.audit-log-path":                 "spec.components.apiserver.flags.audit-log-path: null (user, spec.yaml:13)",
		"components.apiserver.flags.secure-port":         `spec.components.apiserver.flags.secure-port: "6443" (default)`,
		"controllerManager.flags.leader-elect":           `spec.components.controllerManager.flags.leader-elect: "false" (derived: a single control plane)`,
		"kubelet.config.maxPods":                         "spec.components.kubelet.config.maxPods: 60 (user, spec.yaml:24)",
		"kubelet.config.evictionHard.memory.available":   `spec.components.kubelet.config.evictionHard["memory.available"]: 200Mi (user, spec.yaml:29)`,
		"kubelet.config.authentication.webhook":          "spec.components.kubelet.config.authentication.webhook: null (user, spec.yaml:28)",
		"spec.networking.dnsAddress":                     "spec.networking.dnsAddress: 10.96.0.10 (derived: networking.serviceCIDR)",
		"etcd.env.GOGC":                                  `spec.components.etcd.env.GOGC: "75" (user, spec.yaml:10)`,
		"pools[0].roles":                                 "spec.pools[0].roles: [control-plane, worker] (default: everything on the only pool)",
		"metadata.name":                                  "metadata.name: dev (user, spec.yaml:3)",
		"coredns.corefile":                               ":8181",
		"kubelet.config.authorization":                   "ask for one of spec.components.kubelet.config.authorization.mode",
		"kubelet.config.systemReserved":                  "ask for one of spec.components.kubelet.config.systemReserved.cpu",
		"apiserver.flags.secure-prot":                    `did you mean "apiserver.flags.secure-port"?`,
		"controllerManager.flags.concurrent-something-x": "controllerManager uses its own default; set spec.components.controllerManager.flags.concurrent-something-x",
		"apiservr.flags.secure-port":                     `did you mean "apiserver.flags"?`,
		"zzz":                                            "no such value",
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			a, err := config.Why(c, path)
			got := a.String()
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, want) {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

// TestEveryValueHasAnOrigin: what Print shows, Why can explain, and neither invents an origin.
func TestEveryValueHasAnOrigin(t *testing.T) {
	t.Parallel()
	for name, story := range golden.Read(t) {
		c, problems := complete(t, golden.Input(story))
		if len(problems) > 0 {
			continue
		}
		for i, line := range strings.Split(string(config.Print(c)), "\n") {
			if _, comment, ok := strings.Cut(line, " # "); ok && !strings.HasPrefix(comment, "default") &&
				!strings.HasPrefix(comment, "derived: ") && comment != "user" && !strings.Contains(comment, "# ") {
				t.Errorf("%s: line %d has no origin: %s", name, i+1, line)
			}
			if strings.HasSuffix(line, "# ") || strings.HasSuffix(line, "#") {
				t.Errorf("%s: line %d has an empty origin: %s", name, i+1, line)
			}
		}
	}
}
