// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/bootstrap"
	"github.com/slipway-project/slipway/internal/core/plan"
	corewait "github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/operate"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// now is the time at which all statuses of these tests are shown.
func now() time.Time { return time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC) }

func before(d time.Duration) time.Time { return now().Add(-d) }

func running(name string, n *agentclient.NodeStatus, problem string) operate.MachineStatus {
	m := operate.MachineStatus{
		Status: machine.Status{Name: name, Address: netip.MustParseAddr("10.89.0.10"), Running: true, PID: 77, Since: before(312 * time.Second)},
		Node:   n, AgentError: problem,
	}
	if n != nil {
		m.AgentVersion = "v0.1.0"
	}
	return m
}

func statuses() map[string]operate.ClusterStatus {
	good := &agentclient.NodeStatus{
		Steps: 69, Release: "1.36.4",
		Items: []reconcile.Status{
			{Ref: "unit/etcd", Phase: reconcile.Ready, For: corewait.For{Since: before(300 * time.Second)}},
			{Ref: "control/role", Phase: reconcile.Ready, For: corewait.For{Since: before(300 * time.Second)}},
			{Ref: "control/dns", Phase: reconcile.Ready, For: corewait.For{Since: before(3*time.Hour + 5*time.Minute)}},
		},
		Units: []agentclient.UnitStatus{
			{Name: "etcd", PID: 12, Since: before(300 * time.Second), Ready: true, Restarts: 2, LastExit: "exited with 1"},
			{Name: "image-pause", Oneshot: true, LastExit: "exited with 0"},
		},
	}
	bad := &agentclient.NodeStatus{
		Release: "1.36.4",
		Items: []reconcile.Status{
			{
				Ref: "unit/kube-scheduler", Phase: reconcile.Failing, For: corewait.For{Since: before(2 * time.Second), Who: "its supervisor, which starts it again"}, Error: "ended by signal: killed",
			},
			{Ref: "unit/kube-proxy", Phase: reconcile.Waiting, For: corewait.For{Since: before(90 * time.Second), What: "unit/kube-apiserver"}},
			{
				Ref: "unit/kube-apiserver", Phase: reconcile.Starting, For: corewait.For{Since: before(12 * time.Second), What: "waiting for https://127.0.0.1:6443/readyz to answer 200"},
				Step: &plan.Step{Verb: plan.Replace, Why: "its arguments differ"},
			},
			{Ref: "cert/ca", Phase: reconcile.Failing, For: corewait.For{Since: before(250 * time.Millisecond)}, Error: "create: no space\nleft on device"},
			{Ref: "file//etc/a", Phase: reconcile.Doing, For: corewait.For{Since: before(time.Second), What: "create"}, Step: &plan.Step{Verb: plan.Create, Why: "it does not exist"}},
			{Ref: "unit/hook-a", Phase: reconcile.Doing, For: corewait.For{Since: before(time.Second), What: "create"}, Error: "create: exited with 1: no\nroute"},
			{Ref: "control/node/b", Phase: reconcile.Starting, For: corewait.For{Since: before(time.Minute), What: "the node to say that it is ready", Who: "kubelet of b"}},
		},
		Units: []agentclient.UnitStatus{
			{Name: "kube-apiserver", PID: 14, Since: before(12 * time.Second), Waiting: "x"},
			{Name: "kube-scheduler", Since: before(time.Minute), Restarts: 3, LastExit: "ended by signal: killed", Waiting: "starting again in 90ms"},
		},
	}
	return map[string]operate.ClusterStatus{
		"ready":   {Cluster: "dev", Ready: true, Verdict: "VERDICT", Machines: []operate.MachineStatus{running("dev-main-0", good, "")}},
		"unready": {Cluster: "dev", Verdict: "VERDICT", Machines: []operate.MachineStatus{running("dev-main-0", bad, "")}},
		"dark": {Cluster: "dev", Verdict: "VERDICT", Machines: []operate.MachineStatus{
			{Status: machine.Status{Name: "a", Address: netip.MustParseAddr("10.89.0.10")}},
			running("b", nil, "connect: connection refused"),
			running("c", good, ""),
		}},
		"several": {Cluster: "dev", Verdict: "VERDICT", Machines: []operate.MachineStatus{
			running("dev-main-0", good, ""), running("dev-main-1", bad, ""), cut(running("dev-worker-0", good, "")),
		}},
		"empty": {Cluster: "dev", Verdict: "VERDICT"},
	}
}

func cut(m operate.MachineStatus) operate.MachineStatus {
	m.Cut = true
	return m
}

// TestStatusDetail checks that details of several machines are shown only on request.
func TestStatusDetail(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]detail{"several-verbose": {all: true}, "several-one": {machine: "dev-main-1"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := statuses()["several"]
			var out bytes.Buffer
			statusText(&out, s, d, now())
			golden(t, filepath.Join("testdata", "status", name+".txt"), out.String())
			if err := d.check(s); err != nil {
				t.Error(err)
			}
		})
	}
	if err := (detail{machine: "x"}).check(statuses()["several"]); err == nil || !strings.Contains(err.Error(), "dev has dev-main-0, dev-main-1") {
		t.Errorf("--machine x: got %v, want the names of the machines", err)
	}
}

func TestStatusText(t *testing.T) {
	t.Parallel()
	for name, status := range statuses() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			statusText(&out, status, detail{}, now())
			golden(t, filepath.Join("testdata", "status", name+".txt"), out.String())
		})
	}
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if flag.Lookup("update").Value.String() == "true" { // declared in script_test.go
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func TestUpText(t *testing.T) {
	t.Parallel()
	milestones := []bootstrap.Milestone{{Name: "API ready", At: 2410 * time.Millisecond}, {Name: "node Ready", At: 3350 * time.Millisecond}}
	for name, test := range map[string]struct {
		result bootstrap.Result
		wait   time.Duration
	}{
		"up": {bootstrap.Result{
			Cluster: "dev", Release: "1.36.4", Changed: true, Steps: 69, Kubeconfig: "/k", Elapsed: 7310 * time.Millisecond, Milestones: milestones,
		}, time.Minute},
		"up-built": {bootstrap.Result{
			Cluster: "dev", Release: "1.36.4", Changed: true, Steps: 69, Kubeconfig: "/k", Elapsed: 403 * time.Second, Built: 396 * time.Second, Milestones: milestones,
		}, time.Minute},
		"up-nothing": {bootstrap.Result{Cluster: "dev", Release: "1.36.4", Elapsed: 90 * time.Millisecond, Milestones: milestones}, time.Minute},
		"up-unchanged": {bootstrap.Result{
			Cluster: "test", Release: "1.36.4", Unready: []reconcile.Status{{Ref: "unit/etcd", Phase: reconcile.Failing, Error: "exit code 1"}},
		}, 0},
		"up-nowait": {bootstrap.Result{Cluster: "test", Release: "1.36.4", Changed: true}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			upText(&out, test.result, bootstrap.UpOptions{Wait: test.wait})
			golden(t, filepath.Join("testdata", "status", name+".txt"), out.String())
		})
	}
}

// TestFirstWaitOfRepeatedStep checks that a step that is repeated is shown with its last error.
func TestFirstWaitOfRepeatedStep(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		item reconcile.Status
		want string
	}{
		"a oneshot": {
			reconcile.Status{Ref: "unit/hook-a", Phase: reconcile.Doing, For: corewait.For{What: "create"}, Error: "create: exited with 1:\nno route"},
			"unit/hook-a, doing: running again; last error: create: exited with 1: no route",
		},
		"a file":         {reconcile.Status{Ref: "file//a", Phase: reconcile.Doing, For: corewait.For{What: "create"}, Error: "no space"}, "file//a, doing: create again; last error: no space"},
		"the first time": {reconcile.Status{Ref: "unit/hook-a", Phase: reconcile.Doing, For: corewait.For{What: "create"}}, "unit/hook-a, doing: create"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := running("m", &agentclient.NodeStatus{Items: []reconcile.Status{tc.item}}, "")
			if got := firstWait("dev", m, now()); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
