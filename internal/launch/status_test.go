// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/reconcile"
)

func up1(n *NodeStatus) MachineStatus {
	return MachineStatus{Status: machine.Status{Name: "m", Running: true}, Node: n}
}

// TestJudge: what is not known is not ready, and the worst is said first.
func TestJudge(t *testing.T) {
	t.Parallel()
	item := func(ref string, p reconcile.Phase) reconcile.Status { return reconcile.Status{Ref: ref, Phase: p} }
	ready := &NodeStatus{Release: "1.36.4", Items: []reconcile.Status{item("unit/etcd", reconcile.Ready)}}
	for name, test := range map[string]struct {
		machines []MachineStatus
		ready    bool
		verdict  string
	}{
		"no machine":           {nil, false, "has no machine yet"},
		"all is well":          {[]MachineStatus{up1(ready), up1(ready)}, true, "cluster dev is ready: Kubernetes 1.36.4, 2 machines"},
		"one is down":          {[]MachineStatus{up1(ready), {Status: machine.Status{Name: "b"}}}, false, "is not whole: machine b does not run: start it with slipway machine start b --name dev"},
		"the only one is down": {[]MachineStatus{{Status: machine.Status{Name: "b"}}}, false, "is down: machine b does not run: start it with slipway up --name dev"},
		"no answer":            {[]MachineStatus{up1(nil), up1(ready)}, false, "nobody knows: the agent of m does not answer"},
		"no plan":              {[]MachineStatus{up1(&NodeStatus{})}, false, "m has no plan yet"},
		"one waits": {
			[]MachineStatus{up1(&NodeStatus{Items: []reconcile.Status{item("a", reconcile.Ready), item("b", reconcile.Waiting)}})},
			false,
			"is not ready: 1 of 2 items are not",
		},
		"a unit has fallen": {[]MachineStatus{up1(&NodeStatus{
			Items: []reconcile.Status{item("unit/etcd", reconcile.Failing)}, Units: []UnitStatus{{Name: "etcd", LastExit: "killed"}},
		})}, false, "is not ready: 1 of 1 item"},
		"a finished oneshot": {[]MachineStatus{up1(&NodeStatus{
			Items: ready.Items, Units: []UnitStatus{{Name: "etcd", Ready: true}, {Name: "image", Oneshot: true}},
		})}, true, "is ready"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := Status{Cluster: "dev", Machines: test.machines}
			s.judge()
			if s.Ready != test.ready || !strings.Contains(s.Verdict, test.verdict) {
				t.Errorf("got ready %v, %q; want %v, %q", s.Ready, s.Verdict, test.ready, test.verdict)
			}
		})
	}
}

// TestUnready: trouble comes before work, and work before waiting; each is told once.
func TestUnready(t *testing.T) {
	t.Parallel()
	n := NodeStatus{
		Items: []reconcile.Status{
			{Ref: "unit/b", Phase: reconcile.Waiting},
			{Ref: "unit/a", Phase: reconcile.Starting},
			{Ref: "unit/c", Phase: reconcile.Failing, Error: "exited with 1"},
			{Ref: "unit/d", Phase: reconcile.Ready},
		},
		Units: []UnitStatus{{Name: "a"}, {Name: "b"}, {Name: "c", LastExit: "exited with 1"}, {Name: "d", Ready: true}},
	}
	var got []string
	for _, s := range n.Unready() {
		got = append(got, s.Ref+" "+string(s.Phase)+" "+s.Error)
	}
	want := []string{"unit/c failing exited with 1", "unit/a starting ", "unit/b waiting "}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("unready (-want +got):\n%s", diff)
	}
}

func TestClusters(t *testing.T) {
	t.Parallel()
	l := &Launcher{Root: filepath.Join(t.TempDir(), "root")}
	names, err := l.Clusters()
	if err != nil || len(names) != 0 {
		t.Errorf("got %v, %v: want nothing", names, err)
	}
	if _, err := l.Status(t.Context(), "dev"); !errors.Is(err, ErrNoCluster) {
		t.Errorf("status of nothing: got %v, want ErrNoCluster", err)
	}
	if _, err := os.Stat(l.Root); err == nil {
		t.Error("looking made the root folder")
	}
	for _, dir := range []string{"clusters/b", "machines/b", "machines/a", "machines/.hidden"} {
		if err := os.MkdirAll(filepath.Join(l.Root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	names, err = l.Clusters()
	if err != nil || !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("got %v, %v: want a and b", names, err)
	}
}
