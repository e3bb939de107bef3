// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/artifact"
	coremachine "github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/planner"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// alone is a cluster's only machine, met already.
func alone(u *up) fleet {
	p := u.cluster.Config.Pools[0]
	return fleet{{NodeName: p.Nodes[0], pool: p, facts: coremachine.Facts{Address: usual(0)}, enrolment: enrolment{phase: committedPhase, cluster: "c", node: p.Nodes[0].Name}}}
}

func newUp(t *testing.T, o UpOptions) (*up, localMachines) {
	t.Helper()
	u := &up{Launcher: &Launcher{Root: shortDir(t), Log: slog.New(slog.DiscardHandler)}, o: o, begun: time.Now(), cluster: mustComplete(t, "")}
	machines, err := u.local(u.cluster.Name, "/bin/false")
	if err != nil {
		t.Fatal(err)
	}
	return u, machines
}

// A spec that the planner refuses does not take the place of the one that works.
func TestSpecIsKeptWhenNothingRefusesIt(t *testing.T) {
	t.Parallel()
	u, _ := newUp(t, UpOptions{})
	all := alone(u)
	u.components = planner.Components{}
	if _, err := u.decide(all, all[0]); err == nil {
		t.Fatal("a plan without components was not refused")
	}
	if _, err := os.Stat(u.specFile("dev")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a refused spec was kept: %v", err)
	}
	u.components = placeholders(u.cluster.Release)
	if _, err := u.decide(all, all[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(u.specFile("dev")); err != nil {
		t.Error(err)
	}
}

// The time to wait bounds an agent that never answers, and says where to look.
func TestWaitBoundsASilentAgent(t *testing.T) {
	t.Parallel()
	u, machines := newUp(t, UpOptions{Wait: 100 * time.Millisecond})
	u.deadline = time.Now().Add(u.o.Wait)
	limited, cancel := u.limit(t.Context())
	defer cancel()
	m := alone(u)[0]
	err := u.late(t.Context(), u.meet(limited, machines, m))
	var known *Error
	if !errors.As(err, &known) || known.Kind != TimedOut || !strings.Contains(err.Error(), "slipway logs --name dev agent") {
		t.Errorf("error %v", err)
	}
	if took := time.Since(u.begun); took > agentLimit/2 {
		t.Errorf("it took %s", took)
	}
	if len(u.result.Unready) != 1 || u.result.Unready[0].Ref != "machine/dev-main-0" {
		t.Errorf("unready: %+v", u.result.Unready)
	}
}

// busy takes a plan and never gets done with it.
type busy struct {
	scripted
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
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	b := &busy{scripted{facts: &nodev1.FactsReply{Facts: coremachine.Facts{Address: netip.MustParseAddr("10.89.0.10")}.Encode()}}, make(chan struct{})}
	serve(t, socket, b)
	return b
}

// An up that waits for a broken cluster does not hold up the one that corrects it, and sees that it has been corrected.
func TestNoLockWhileWaiting(t *testing.T) {
	t.Parallel()
	u, machines := newUp(t, UpOptions{Wait: time.Minute})
	if err := u.hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := busyAgent(t, machines.socket("dev-main-0", agentSock))
	u.components = placeholders(u.cluster.Release)
	all := alone(u)
	all[0].agent = dial(t, machines.socket("dev-main-0", agentSock))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		err := u.handOver(ctx, all)
		if err == nil {
			u.letGo()
			err = u.await(ctx, all[0])
		}
		ended <- err
	}()
	<-b.watched
	soon, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	unlock, err := u.lock(soon, "dev", nil)
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
		"another up":  {func() error { return u.keepSpec(mustComplete(t, "spec: {}\n")) }, "another slipway up has given cluster dev another spec meanwhile"},
		"taken down ": {func() error { return os.RemoveAll(u.clusterDir("dev")) }, "cluster dev was taken down meanwhile"},
	} {
		u.letGo()
		if err := errors.Join(u.keepSpec(u.cluster), tc.meanwhile()); err != nil {
			t.Fatal(err)
		}
		err := u.hold(t.Context())
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	u.letGo()
}

// Without waiting, up tells what it happens to know and claims nothing.
func TestNoWaitTellsWhatIsUnready(t *testing.T) {
	t.Parallel()
	u, machines := newUp(t, UpOptions{})
	busyAgent(t, machines.socket("dev-main-0", agentSock))
	u.components = placeholders(u.cluster.Release)
	all := alone(u)
	all[0].agent = dial(t, machines.socket("dev-main-0", agentSock))
	if err := errors.Join(u.handOver(t.Context(), all), u.await(t.Context(), all[0])); err != nil {
		t.Fatal(err)
	}
	if got := u.result.Unready; u.result.Changed || len(got) != 1 || got[0].Ref != "unit/etcd" {
		t.Errorf("result %+v", u.result)
	}
}

// TestMilestonesCountFromBoot checks that neither the preflight nor a build of components counts as start-up time of the cluster.
func TestMilestonesCountFromBoot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := &up{begun: time.Now()}
		time.Sleep(2 * time.Second) // fake time: the preflight
		u.bundleEvent(artifact.Event{Component: "etcd 3.6.16", Phase: artifact.Compile})
		time.Sleep(6 * time.Minute)
		u.bundleEvent(artifact.Event{Component: "etcd 3.6.16", Phase: artifact.Finished})
		u.stored()
		time.Sleep(580 * time.Millisecond)
		u.milestone(reconcile.Status{Ref: "unit/etcd", Phase: reconcile.Ready, For: wait.For{Since: time.Now()}})
		if want := []Milestone{{"etcd ready", 580 * time.Millisecond}}; !slices.Equal(u.result.Milestones, want) {
			t.Errorf("got milestones %v, want %v", u.result.Milestones, want)
		}
		if u.result.Built != 6*time.Minute {
			t.Errorf("got build time %s, want 6m0s", u.result.Built)
		}
	})
	u := &up{begun: time.Now()}
	if u.stored(); u.result.Built != 0 {
		t.Errorf("got build time %s without a build", u.result.Built)
	}
}
