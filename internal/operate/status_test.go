// SPDX-License-Identifier: Apache-2.0

package operate

import (
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/reconcile"
)

func running(n *agentclient.NodeStatus) MachineStatus {
	return MachineStatus{Status: machine.Status{Name: "m", Running: true}, Node: n}
}

// TestJudge checks that a cluster with an unknown state is not ready, and that the worst problem is reported.
func TestJudge(t *testing.T) {
	t.Parallel()
	item := func(ref string, p reconcile.Phase) reconcile.Status { return reconcile.Status{Ref: ref, Phase: p} }
	ready := &agentclient.NodeStatus{Release: "1.36.4", Items: []reconcile.Status{item("unit/etcd", reconcile.Ready)}}
	for name, test := range map[string]struct {
		machines []MachineStatus
		ready    bool
		verdict  string
	}{
		"no machine":           {nil, false, "has no machines yet"},
		"all is well":          {[]MachineStatus{running(ready), running(ready)}, true, "cluster dev is ready: Kubernetes 1.36.4, 2 machines"},
		"one is down":          {[]MachineStatus{running(ready), {Status: machine.Status{Name: "b"}}}, false, "is degraded: machine b is not running: start it with slipway machine start b --name dev"},
		"the only one is down": {[]MachineStatus{{Status: machine.Status{Name: "b"}}}, false, "is down: machine b is not running: start it with slipway up --name dev"},
		"no answer":            {[]MachineStatus{running(nil), running(ready)}, false, "unknown: the agent of m does not respond"},
		"no plan":              {[]MachineStatus{running(&agentclient.NodeStatus{})}, false, "m has no plan yet"},
		"one waits": {
			[]MachineStatus{running(&agentclient.NodeStatus{Items: []reconcile.Status{item("a", reconcile.Ready), item("b", reconcile.Waiting)}})},
			false,
			"is not ready: 1 of 2 items not ready",
		},
		"a unit has fallen": {[]MachineStatus{running(&agentclient.NodeStatus{
			Items: []reconcile.Status{item("unit/etcd", reconcile.Failing)}, Units: []agentclient.UnitStatus{{Name: "etcd", LastExit: "killed"}},
		})}, false, "is not ready: 1 of 1 item"},
		"a finished oneshot": {[]MachineStatus{running(&agentclient.NodeStatus{
			Items: ready.Items, Units: []agentclient.UnitStatus{{Name: "etcd", Ready: true}, {Name: "image", Oneshot: true}},
		})}, true, "is ready"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := ClusterStatus{Cluster: "dev", Machines: test.machines}
			s.judge()
			if s.Ready != test.ready || !strings.Contains(s.Verdict, test.verdict) {
				t.Errorf("got ready %v, %q; want %v, %q", s.Ready, s.Verdict, test.ready, test.verdict)
			}
		})
	}
}
