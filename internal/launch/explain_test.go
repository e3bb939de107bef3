// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/core/config"
)

// TestExplainFlags: each flag that a cluster has is explained with its value, one that no program has is refused.
func TestExplainFlags(t *testing.T) {
	t.Parallel()
	c, err := Complete("x", []byte(head), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, component := range []string{"etcd", "apiserver", "controllerManager", "scheduler", "kubelet", "kubeProxy", "containerd"} {
		if config.Program(component) == "" {
			t.Errorf("%s has no program", component)
		}
		flags := flagsOf(c.Config, component)
		if len(flags) == 0 {
			t.Errorf("%s has no flags", component)
		}
		for name, flag := range flags {
			d, err := Explain(component + ".flags." + name)
			if err != nil || d.Type == "" || d.Default != strings.Join(flag.Values, ", ") {
				t.Errorf("%s --%s: %+v, %v", component, name, d, err)
			}
		}
		if _, err := Explain(component + ".flags.no-such-flag"); err == nil || !strings.Contains(err.Error(), "no such flag") {
			t.Errorf("%s: unknown flag: %v", component, err)
		}
	}
}
