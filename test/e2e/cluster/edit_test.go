// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

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
