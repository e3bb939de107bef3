// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"errors"
	"os"
	"testing"

	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/core/config"
)

// The control role waits for these items by their names in the plan. It would not wait for an item that is missing.
func TestPlanHasWhatTheRoleWaitsFor(t *testing.T) {
	t.Parallel()
	file := t.TempDir() + "/cluster.yaml"
	if err := os.WriteFile(file, []byte(shortest), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := PlanNode(t.Context(), newInventory(t.TempDir()), clusterdir.Source{File: file}, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{
		"kubeconfig/" + config.ControlConf, "kubeconfig/" + config.SuperAdminConf, "unit/kube-apiserver", "unit/kubelet",
		"unit/kube-controller-manager", "unit/kube-scheduler", "unit/kube-proxy",
	} {
		if _, ok := p.Plan.Find(ref); !ok {
			t.Errorf("got a plan without %s", ref)
		}
	}
}

// Every node of a spec, including workers, can be planned before there is a machine or a component.
func TestPlanBeforeAnything(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := dir + "/cluster.yaml"
	text := shortest + "spec: {pools: [{name: cp, roles: [control-plane], count: 1}, {name: work, roles: [worker], count: 2}]}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	inv := newInventory(dir + "/root")
	for node, want := range map[string]string{"": "dev-cp-0", "dev-work-1": "dev-work-1"} {
		p, err := PlanNode(t.Context(), inv, clusterdir.Source{File: file}, node)
		if err != nil {
			t.Fatal(err)
		}
		if p.Plan.Node != want || len(p.Plan.Entries) == 0 || len(p.Assumed) != 2 {
			t.Errorf("%q: %s with %d entries, assumed %v", node, p.Plan.Node, len(p.Plan.Entries), p.Assumed)
		}
		if _, err := DiffCluster(t.Context(), inv, clusterdir.Source{File: file}); !errors.Is(err, clusterdir.ErrNoCluster) {
			t.Errorf("diff without a cluster: %v", err)
		}
	}
	_, err := PlanNode(t.Context(), inv, clusterdir.Source{File: file}, "other")
	if err == nil || err.Error() != `node "other": cluster dev has dev-cp-0, dev-work-0, dev-work-1` {
		t.Errorf("unknown node: %v", err)
	}
	if _, err := os.Stat(inv.Dir.Root); err == nil {
		t.Error("planning created directories")
	}
}
