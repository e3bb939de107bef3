// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/agentclient/agenttest"
	"github.com/slipway-project/slipway/internal/bundle"
	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/planner"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/inventory"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/operate"
	"github.com/slipway-project/slipway/internal/preflight"
	"github.com/slipway-project/slipway/internal/provider"
	"github.com/slipway-project/slipway/internal/provider/local"
	"github.com/slipway-project/slipway/internal/reconcile"
	"github.com/slipway-project/slipway/internal/report"
)

const shortest = "apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: dev}\n"

func mustComplete(t *testing.T, rest string) clusterdir.Cluster {
	t.Helper()
	c, err := clusterdir.Complete("cluster.yaml", []byte(shortest+rest), "")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func newInventory(root string) inventory.Inventory {
	return inventory.Inventory{Dir: clusterdir.Dir{Root: root}, Log: slog.New(slog.DiscardHandler)}
}

// newTestEngine is the engine of a cluster with one local machine, which does not exist.
func newTestEngine(t *testing.T, wait time.Duration) (*engine, local.Machines) {
	t.Helper()
	inv := newInventory(agenttest.Dir(t))
	c := mustComplete(t, "")
	machines, err := inv.Local(c.Name, "/bin/false")
	if err != nil {
		t.Fatal(err)
	}
	tr := newTracker(nil, wait)
	tr.begin(c)
	e := newEngine(inv, c, bundle.Placeholders(c.Release), tr)
	e.machines = machines
	return e, machines
}

// committedTargets are the machines of the cluster as if they belonged to it.
func committedTargets(e *engine) targets {
	all := specTargets(e.cluster.Config)
	for _, t := range all {
		t.facts.Address = localAddress(t.NodeName)
		t.Membership = agentclient.Membership{Phase: lock.Committed, Cluster: "c", Node: t.Name}
	}
	return all
}

// A spec that the planner refuses does not replace the stored one.
func TestSpecIsStoredOnceItIsPlanned(t *testing.T) {
	t.Parallel()
	e, _ := newTestEngine(t, 0)
	all := committedTargets(e)
	e.components = planner.Components{}
	if _, err := e.plan(all, all[0]); err == nil {
		t.Fatal("a plan without components was not refused")
	}
	if _, err := os.Stat(e.inv.Dir.Spec("dev")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a refused spec was stored: %v", err)
	}
	e.components = bundle.Placeholders(e.cluster.Release)
	if _, err := e.plan(all, all[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(e.inv.Dir.Spec("dev")); err != nil {
		t.Error(err)
	}
}

// The time limit applies to an agent that never answers, and the error says where to look.
func TestWaitBoundsASilentAgent(t *testing.T) {
	t.Parallel()
	e, _ := newTestEngine(t, 100*time.Millisecond)
	e.machinesRunning()
	limited, cancel := e.limit(t.Context())
	defer cancel()
	m := committedTargets(e)[0]
	_, err := e.finish(t.Context(), e.connect(limited, m))
	var known *report.Error
	if !errors.As(err, &known) || known.Kind != report.TimedOut || !strings.Contains(err.Error(), "slipway logs --name dev agent") {
		t.Errorf("error %v", err)
	}
	if took := time.Since(e.started); took > agentLimit/2 {
		t.Errorf("got an error after %s, want it at the time limit", took)
	}
	if len(e.result.Unready) != 1 || e.result.Unready[0].Ref != "machine/dev-main-0" {
		t.Errorf("unready: %+v", e.result.Unready)
	}
}

// busy is an agent that accepts a plan and never completes it.
type busy struct {
	agenttest.Agent
	watched chan struct{}
}

func (b *busy) Apply(context.Context, *nodev1.ApplyRequest) (*nodev1.ApplyReply, error) {
	return &nodev1.ApplyReply{}, nil
}

func (b *busy) Status(context.Context, *nodev1.StatusRequest) (*nodev1.StatusReply, error) {
	return &nodev1.StatusReply{Items: []*nodev1.Item{{Ref: "unit/etcd", Phase: "failing", Error: "exit code 1"}, {Ref: "dir//a", Phase: "ready"}}}, nil
}

func (b *busy) Watch(_ *nodev1.WatchRequest, stream grpc.ServerStreamingServer[nodev1.Event]) error {
	close(b.watched)
	<-stream.Context().Done()
	return nil
}

func busyAgent(t *testing.T, socket string) *busy {
	t.Helper()
	b := &busy{agenttest.Agent{Reply: &nodev1.FactsReply{Facts: []byte(`{"address":"10.89.0.10"}`)}}, make(chan struct{})}
	agenttest.Serve(t, socket, b, nil)
	return b
}

// A run that waits for a broken cluster does not block the run that corrects it, and notices that it was corrected.
func TestNoLockWhileWaiting(t *testing.T) {
	t.Parallel()
	e, machines := newTestEngine(t, time.Minute)
	if err := e.lock.acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := busyAgent(t, machines.Socket("dev-main-0", provider.AgentSocket))
	all := committedTargets(e)
	all[0].agent = agenttest.Dial(t, machines.Socket("dev-main-0", provider.AgentSocket))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		err := e.applyPlans(ctx, all)
		if err == nil {
			e.lock.release()
			err = e.await(ctx, all[0])
		}
		ended <- err
	}()
	<-b.watched
	soon, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	unlock, err := e.inv.Dir.Lock(soon, "dev", nil)
	if err != nil {
		t.Fatalf("a second up: %v", err)
	}
	unlock()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("ended: %v", err)
	}
	for name, tc := range map[string]struct {
		meanwhile func() error
		want      string
	}{
		"nothing":     {func() error { return nil }, ""},
		"another up":  {func() error { return e.inv.Dir.Store(mustComplete(t, "spec: {}\n")) }, "another slipway up has given cluster dev another spec meanwhile"},
		"taken down ": {func() error { return e.inv.Dir.Forget("dev") }, "cluster dev was removed meanwhile"},
	} {
		e.lock.release()
		if err := errors.Join(e.lock.store(), tc.meanwhile()); err != nil {
			t.Fatal(err)
		}
		err := e.lock.acquire(t.Context())
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	e.lock.release()
}

// Without waiting, the result lists what is not ready now.
func TestNoWaitListsWhatIsUnready(t *testing.T) {
	t.Parallel()
	e, machines := newTestEngine(t, 0)
	busyAgent(t, machines.Socket("dev-main-0", provider.AgentSocket))
	all := committedTargets(e)
	all[0].agent = agenttest.Dial(t, machines.Socket("dev-main-0", provider.AgentSocket))
	if err := errors.Join(e.applyPlans(t.Context(), all), e.await(t.Context(), all[0])); err != nil {
		t.Fatal(err)
	}
	if got := e.result.Unready; e.result.Changed || len(got) != 1 || got[0].Ref != "unit/etcd" {
		t.Errorf("result %+v", e.result)
	}
}

func TestImmutable(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ kept, now, want string }{
		"nothing":               {},
		"what may change":       {now: "spec: {components: {kubelet: {config: {maxPods: 7}}}, controlPlane: {extraSANs: [a.example.org]}}\n"},
		"said as it was anyway": {now: "spec: {networking: {podCIDR: 10.244.0.0/16}, kubernetesVersion: \"1.36\", pools: [{name: main, count: 1}]}\n"},
		"everything at once": {
			now: "spec: {networking: {podCIDR: 10.32.0.0/14, nodePodPrefix: 25, serviceCIDR: 10.97.0.0/16, clusterDomain: shop.internal}, controlPlane: {form: StaticPods}}\n",
			want: `cluster dev exists, and this cannot be changed in it:
  spec.networking.podCIDR: 10.32.0.0/14, was 10.244.0.0/16
  spec.networking.nodePodPrefix: 25, was 24
  spec.networking.serviceCIDR: 10.97.0.0/16, was 10.96.0.0/16
  spec.networking.clusterDomain: shop.internal, was cluster.local
  spec.networking.dnsAddress: 10.97.0.10, was 10.96.0.10
  spec.controlPlane.form: StaticPods, was HostUnits
undo the change, or create a new cluster: slipway down --name dev`,
		},
		"where the data is": {
			now: "spec: {components: {etcd: {flags: {data-dir: /var/lib/etcd/other}}}}\n",
			want: `cluster dev exists, and this cannot be changed in it:
  spec.components.etcd.flags.data-dir: /var/lib/etcd/other, was /var/lib/etcd
undo the change, or create a new cluster: slipway down --name dev`,
		},
		"another address": {
			kept: "spec: {pools: [{name: p, machines: [{name: a, address: 10.89.0.20}]}]}\n", now: "spec: {pools: [{name: p, machines: [{name: a, address: 10.89.0.21}]}]}\n",
			want: `cluster dev exists, and this cannot be changed in it:
  spec.pools: machine a: address 10.89.0.21, was 10.89.0.20
undo the change, or create a new cluster: slipway down --name dev`,
		},
		"control planes before workers": {
			kept: "spec: {pools: [{name: c, roles: [control-plane]}, {name: w}]}\n", now: "spec: {pools: [{name: c, roles: [control-plane], count: 3}, {name: w, count: 2}]}\n",
		},
		"a larger pool": {kept: "spec: {pools: [{name: p, count: 1}]}\n", now: "spec: {pools: [{name: p, count: 3}]}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEngine(newInventory(t.TempDir()), mustComplete(t, tc.now), nil, newTracker(nil, 0))
			if err := e.checkSpec(); err != nil {
				t.Errorf("a new cluster: %v", err)
			}
			if err := e.inv.Dir.Store(mustComplete(t, tc.kept)); err != nil {
				t.Fatal(err)
			}
			err := e.checkSpec()
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var bad *report.Error
			if !errors.As(err, &bad) || bad.Kind != report.InvalidSpec {
				t.Fatalf("error %v, want one of kind InvalidSpec", err)
			}
			if diff := cmp.Diff(tc.want, err.Error()); diff != "" {
				t.Errorf("refusal (-want +got):\n%s", diff)
			}
		})
	}
}

// A stored spec that cannot be read does not make the cluster a new one.
func TestImmutableUnreadable(t *testing.T) {
	t.Parallel()
	e := newEngine(newInventory(t.TempDir()), mustComplete(t, ""), nil, newTracker(nil, 0))
	if err := e.inv.Dir.Store(clusterdir.Cluster{Name: "dev", Spec: []byte("{")}); err != nil {
		t.Fatal(err)
	}
	if err := e.checkSpec(); err == nil || !strings.HasPrefix(err.Error(), "read the stored spec: ") {
		t.Errorf("error %v", err)
	}
}

func TestCheckLocal(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ spec, want string }{
		"one machine":    {},
		"three machines": {spec: "spec: {pools: [{name: p, count: 3}]}\n"},
		"static pods":    {spec: "spec: {controlPlane: {form: StaticPods}}\n"},
	} {
		err := checkLocal(newInventory(t.TempDir()), mustComplete(t, tc.spec))
		if (err == nil) != (tc.want == "") || err != nil && err.Error() != tc.want {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// Machines that are not in the spec are recorded; the machines themselves report whether they may be removed.
func TestMachinesLeftOut(t *testing.T) {
	t.Parallel()
	e := newEngine(newInventory(t.TempDir()), mustComplete(t, "spec: {pools: [{name: main, count: 3}]}\n"), nil, newTracker(nil, 0))
	if err := e.lock.store(); err != nil {
		t.Fatal(err)
	}
	e.cluster = mustComplete(t, "spec: {pools: [{name: main, count: 1}]}\n")
	if err := e.checkSpec(); err != nil {
		t.Fatal(err)
	}
	if want := []string{"dev-main-1", "dev-main-2"}; !slices.Equal(e.removed, want) {
		t.Errorf("removed machines: got %v, want %v", e.removed, want)
	}
}

func TestInitKind(t *testing.T) {
	t.Parallel()
	one := []machine.Status{{Name: "dev-main-0", Init: machine.Systemd}}
	for name, tc := range map[string]struct {
		have         []machine.Status
		wanted, want machine.InitKind
		refused      string
	}{
		"a new cluster, no option":    {nil, "", "", ""},
		"a new cluster":               {nil, machine.Systemd, machine.Systemd, ""},
		"one more machine, no option": {one, "", machine.Systemd, ""},
		"one more machine":            {one, machine.Systemd, machine.Systemd, ""},
		"another":                     {one, machine.OwnInit, "", "machine dev-main-0 uses init systemd, but --init is slipway"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := initKind("dev", tc.have, tc.wanted)
			if got != tc.want || (err == nil) != (tc.refused == "") || err != nil && !strings.Contains(err.Error(), tc.refused) {
				t.Errorf("%q, %v; want %q, %q", got, err, tc.want, tc.refused)
			}
		})
	}
}

func TestProblemsErrorCounts(t *testing.T) {
	t.Parallel()
	for want, n := range map[string]int{"this host has 1 problem; nothing": 1, "this host has 2 problems; nothing": 2} {
		if err := problemsError(make([]preflight.Finding, n)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if err := problemsError(nil); err != nil {
		t.Errorf("got %v", err)
	}
}

func TestWasRemoved(t *testing.T) {
	t.Parallel()
	me := agentclient.Membership{Key: "sha256:me", Node: "dev-worker-0", Phase: lock.Committed}
	other := operate.Node{Name: "dev-main-0", Key: "sha256:other"}
	for name, tt := range map[string]struct {
		nodes []operate.Node
		want  bool
	}{
		"known":                          {[]operate.Node{other, {Name: "dev-worker-0", Key: "sha256:me"}}, false},
		"known by another name":          {[]operate.Node{other, {Name: "edge", Key: "sha256:me"}}, false},
		"removed":                        {[]operate.Node{other}, true},
		"removed, and its Node is there": {[]operate.Node{other, {Name: "dev-worker-0"}}, true},
		"another machine has its name":   {[]operate.Node{other, {Name: "dev-worker-0", Key: "sha256:third"}}, false},
		"the records do not answer":      {[]operate.Node{{Name: "dev-main-0"}, {Name: "dev-worker-0"}}, false},
		"no nodes at all":                {nil, false},
		"it is the only node":            {[]operate.Node{{Name: "dev-worker-0", Key: "sha256:me"}}, false},
	} {
		if got := wasRemoved(tt.nodes, me); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// If another run has fetched the answer, which ends the init service, it is enough that the agent reports a committed machine.
func TestAwaitInitWithoutInitService(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		phase lock.Phase
		want  bool
	}{
		"committed": {lock.Committed, true},
		"claimed":   {lock.Claimed, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, machines := newTestEngine(t, time.Minute)
			m := committedTargets(e)[0]
			socket := machines.Socket(m.Name, provider.AgentSocket)
			agenttest.Serve(t, socket, &agenttest.Agent{Reply: &nodev1.FactsReply{Facts: []byte(`{"address":"10.89.0.10"}`), Lock: string(tc.phase)}}, nil)
			m.agent, m.Phase, m.Key = agenttest.Dial(t, socket), lock.Claimed, pin.Pin("sha256:"+strings.Repeat("0a", 32))
			e.init = initRequest{ID: newRequestID("up"), Machine: m.Name, Secret: "secret"}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if !tc.want {
				ctx, cancel = context.WithTimeout(ctx, 3*time.Second)
				defer cancel()
			}
			err := e.awaitInit(ctx, m)
			if (err == nil) != tc.want || (m.Phase == lock.Committed) != tc.want {
				t.Errorf("phase %s, %v", m.Phase, err)
			}
		})
	}
}

// A machine that was reset is free and has no secret. The remedy must not delete the component store.
func TestRequestInitRefuses(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{"": "free now", "dev-main-7": "init secret was given to dev-main-7"} {
		e, _ := newTestEngine(t, 0)
		all := committedTargets(e)
		e.init.Machine = given
		err := e.requestInit(t.Context(), all, all[0])
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "slipway down --name dev, then") {
			t.Errorf("%q: %v", given, err)
		}
	}
}

// Neither the preflight nor a build of components counts as start-up time of the cluster.
func TestMilestonesCountFromBoot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := newTracker(nil, 0)
		time.Sleep(2 * time.Second) // fake time: the preflight
		tr.build(report.Event{Item: "etcd 3.6.16"})
		time.Sleep(6 * time.Minute)
		tr.build(report.Event{Item: "etcd 3.6.16"})
		tr.built()
		time.Sleep(580 * time.Millisecond)
		tr.milestone(reconcile.Status{Ref: "unit/etcd", Phase: reconcile.Ready, For: wait.For{Since: time.Now()}})
		if want := []Milestone{{"etcd ready", 580 * time.Millisecond}}; !slices.Equal(tr.result.Milestones, want) {
			t.Errorf("got milestones %v, want %v", tr.result.Milestones, want)
		}
		if tr.result.Built != 6*time.Minute {
			t.Errorf("got build time %s, want 6m0s", tr.result.Built)
		}
	})
	tr := newTracker(nil, 0)
	if tr.built(); tr.result.Built != 0 {
		t.Errorf("got build time %s without a build", tr.result.Built)
	}
}
