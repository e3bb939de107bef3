// SPDX-License-Identifier: Apache-2.0

package compose_test

import (
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/config"
)

// TestExplainFlags: each flag that a cluster has is explained with its value, one that no program has is refused.
func TestExplainFlags(t *testing.T) {
	t.Parallel()
	c, _ := cluster(t, "")
	for _, component := range []string{"etcd", "apiserver", "controllerManager", "scheduler", "kubelet", "kubeProxy", "containerd"} {
		if config.Program(component) == "" {
			t.Errorf("%s has no program", component)
		}
		settings, _ := c.ComponentOf(component)
		if len(settings.Flags) == 0 {
			t.Errorf("%s has no flags", component)
		}
		for name, values := range settings.Flags {
			d, err := compose.Explain(component + ".flags." + name)
			if err != nil || d.Type == "" || d.Default != strings.Join(values, ", ") {
				t.Errorf("%s --%s: %+v, %v", component, name, d, err)
			}
		}
		if _, err := compose.Explain(component + ".flags.no-such-flag"); err == nil || !strings.Contains(err.Error(), "no such flag") {
			t.Errorf("%s: unknown flag: %v", component, err)
		}
	}
}
