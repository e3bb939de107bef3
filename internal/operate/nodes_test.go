// SPDX-License-Identifier: Apache-2.0

package operate

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/slipway-project/slipway/api/control/v1"
	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/agentclient/agenttest"
	"github.com/slipway-project/slipway/internal/clusterdir"
	coremachine "github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/inventory"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/machine/process"
	"github.com/slipway-project/slipway/internal/node/lock"
)

// fakeCluster is a cluster of which only the records and the agents' sockets exist: this process plays every machine.
type fakeCluster struct {
	inventory.Inventory
	t    *testing.T
	name string
}

func newFakeCluster(t *testing.T, name string) *fakeCluster {
	t.Helper()
	return &fakeCluster{inventory.Inventory{Dir: clusterdir.Dir{Root: agenttest.Dir(t)}, Log: slog.New(slog.DiscardHandler)}, t, name}
}

// machine adds a running machine, with an agent unless that is nil.
func (c *fakeCluster) machine(name string, agent nodev1.NodeServer, control controlv1.ControlServer) {
	c.t.Helper()
	dir := filepath.Join(c.Dir.Root, "machines", c.name, name)
	self, err := process.Identify(os.Getpid())
	if err != nil {
		c.t.Fatal(err)
	}
	for _, d := range []string{filepath.Join(dir, "run"), filepath.Join(c.Dir.Root, "machines", c.name, ".runc", name)} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			c.t.Fatal(err)
		}
	}
	err = durable.Save(filepath.Join(dir, "state.json"), 1, map[string]any{"spec": machine.Spec{Cluster: c.name, Name: name}, "process": self, "since": time.Now()})
	if err != nil {
		c.t.Fatal(err)
	}
	if agent != nil {
		agenttest.Serve(c.t, filepath.Join(dir, "run", "agent.sock"), agent, control)
	}
}

// fakeControl is a control plane with scripted answers.
type fakeControl struct {
	controlv1.UnimplementedControlServer
	nodes []*controlv1.Node
	err   error
	lines []string
	asked atomic.Int32
	drain *controlv1.DrainNodeRequest
	leave *controlv1.RemoveNodeRequest
	made  *controlv1.CreateTokenRequest
}

func (f *fakeControl) ListNodes(context.Context, *controlv1.ListNodesRequest) (*controlv1.ListNodesReply, error) {
	f.asked.Add(1)
	return &controlv1.ListNodesReply{Nodes: f.nodes}, f.err
}

func (f *fakeControl) DrainNode(r *controlv1.DrainNodeRequest, s grpc.ServerStreamingServer[controlv1.Progress]) error {
	f.drain = r
	return f.tell(s)
}

func (f *fakeControl) RemoveNode(r *controlv1.RemoveNodeRequest, s grpc.ServerStreamingServer[controlv1.Progress]) error {
	f.leave = r
	return f.tell(s)
}

func (f *fakeControl) tell(s grpc.ServerStreamingServer[controlv1.Progress]) error {
	for _, line := range f.lines {
		if err := s.Send(&controlv1.Progress{Text: line}); err != nil {
			return err
		}
	}
	return f.err
}

func (f *fakeControl) CreateToken(_ context.Context, r *controlv1.CreateTokenRequest) (*controlv1.CreateTokenReply, error) {
	f.made = r
	return &controlv1.CreateTokenReply{Id: "a1", Token: "a1.secret", Pin: "sha256:0", Cluster: "c", Endpoints: []string{"10.0.0.1:9440"}, ExpiresUnix: 90}, f.err
}

func (f *fakeControl) ListTokens(context.Context, *controlv1.ListTokensRequest) (*controlv1.ListTokensReply, error) {
	return &controlv1.ListTokensReply{Tokens: []*controlv1.Token{{Id: "a1", Pool: "worker", ExpiresUnix: 90, UsedBy: "sha256:9"}}}, f.err
}

func (f *fakeControl) RevokeToken(_ context.Context, r *controlv1.RevokeTokenRequest) (*controlv1.RevokeTokenReply, error) {
	if r.GetId() != "a1" {
		return nil, status.Error(codes.NotFound, "there is no token "+r.GetId())
	}
	return &controlv1.RevokeTokenReply{}, f.err
}

func (f *fakeControl) ApproveNode(_ context.Context, r *controlv1.ApproveNodeRequest) (*controlv1.ApproveNodeReply, error) {
	return &controlv1.ApproveNodeReply{Key: "key of " + r.GetName()}, f.err
}

// The control planes of the spec are asked first, and a machine that cannot answer is skipped.
func TestAskControl(t *testing.T) {
	t.Parallel()
	answer := []*controlv1.Node{{Name: "n", Roles: []string{"worker"}, Addresses: []string{"10.0.0.9"}, Ready: true, Version: "v1.36.0", Waiting: "w"}}
	for name, test := range map[string]struct {
		first, second error // of the two control planes; the worker knows no such service
		want          string
		asked         [2]int32
	}{
		"the first answers":         {nil, nil, "", [2]int32{1, 0}},
		"the first is not ready":    {status.Error(codes.Unavailable, "no API yet"), nil, "", [2]int32{1, 1}},
		"none is ready":             {status.Error(codes.Unavailable, "no API"), status.Error(codes.Unavailable, "no etcd"), "no control plane answers: main-0: no API\nmain-1: no etcd\nwork-0 is not a control plane", [2]int32{1, 1}},
		"a refusal is the answer":   {status.Error(codes.FailedPrecondition, "1 of 2 voters answer"), nil, "list nodes: 1 of 2 voters answer", [2]int32{1, 0}},
		"and so is what went wrong": {errors.New("damaged record"), nil, "list nodes: damaged record", [2]int32{1, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newFakeCluster(t, "c")
			spec := "apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: c}\n" +
				"spec: {pools: [{name: a, roles: [control-plane], machines: [{name: main-0, address: 10.0.0.1}, {name: main-1, address: 10.0.0.2}, {name: main-2, address: 10.0.0.3}]}]}\n"
			if err := errors.Join(os.MkdirAll(c.Dir.Path("c"), 0o700), os.WriteFile(c.Dir.Spec("c"), []byte(spec), 0o600)); err != nil {
				t.Fatal(err)
			}
			first, second := &fakeControl{nodes: answer, err: test.first}, &fakeControl{nodes: answer, err: test.second}
			c.machine("work-0", &agenttest.Agent{}, nil)
			c.machine("main-0", &agenttest.Agent{}, first)
			c.machine("main-1", &agenttest.Agent{}, second)
			nodes, err := Nodes(t.Context(), c.Inventory, "c")
			switch {
			case test.want == "" && err != nil:
				t.Fatal(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "rpc error")):
				t.Fatalf("got %v, want %q", err, test.want)
			case test.want == "":
				want := []Node{{Name: "n", Roles: []string{"worker"}, Addresses: []string{"10.0.0.9"}, Ready: true, Version: "v1.36.0", Waiting: "w"}}
				if diff := cmp.Diff(want, nodes, cmpopts.EquateComparable(coremachine.Facts{})); diff != "" {
					t.Errorf("nodes (-want +got):\n%s", diff)
				}
			}
			if got := [2]int32{first.asked.Load(), second.asked.Load()}; got != test.asked {
				t.Errorf("asked %v times, want %v", got, test.asked)
			}
		})
	}
}

// An agent that does not respond is skipped, within the time that a restart takes.
func TestAskControlSkipsUnreachableAgents(t *testing.T) {
	t.Parallel()
	c := newFakeCluster(t, "c")
	c.machine("c-main-0", nil, nil)
	c.machine("c-main-1", &agenttest.Agent{}, &fakeControl{})
	nodes, err := Nodes(t.Context(), c.Inventory, "c")
	if err != nil || nodes == nil || len(nodes) != 0 {
		t.Errorf("got %v, %v", nodes, err)
	}
	alone := newFakeCluster(t, "c")
	alone.machine("c-main-0", nil, nil)
	if _, err := Nodes(t.Context(), alone.Inventory, "c"); err == nil || !strings.Contains(err.Error(), "slipway logs agent --machine c-main-0") {
		t.Errorf("no agent answers: %v", err)
	}
	if _, err := Nodes(t.Context(), alone.Inventory, "other"); !errors.Is(err, clusterdir.ErrNoCluster) {
		t.Errorf("no such cluster: %v", err)
	}
}

func TestDrainAndRemove(t *testing.T) {
	t.Parallel()
	c := newFakeCluster(t, "c")
	f := &fakeControl{lines: []string{"moving 2 pods", "waiting for default/web"}}
	c.machine("c-main-0", &agenttest.Agent{}, f)
	var said []string
	say := func(s string) { said = append(said, s) }
	if err := DrainNode(t.Context(), c.Inventory, "c", "n", 1500*time.Millisecond, true, say); err != nil {
		t.Fatal(err)
	}
	if f.drain.GetName() != "n" || f.drain.GetTimeoutSeconds() != 2 || !f.drain.GetUndo() {
		t.Errorf("request: %v", f.drain)
	}
	if diff := cmp.Diff(f.lines, said); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
	f.err = status.Error(codes.FailedPrecondition, "the cluster would lose its quorum")
	said = nil
	err := RemoveNode(t.Context(), c.Inventory, "c", "n", 0, true, say)
	if err == nil || err.Error() != "remove node n: the cluster would lose its quorum" || len(said) != 2 || !f.leave.GetLost() {
		t.Errorf("got %v after %v, request %v", err, said, f.leave)
	}
	f.err = nil
	if key, err := ApproveNode(t.Context(), c.Inventory, "c", "n"); err != nil || key != "key of n" {
		t.Errorf("approve: %q, %v", key, err)
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	c := newFakeCluster(t, "c")
	f := &fakeControl{}
	c.machine("c-main-0", &agenttest.Agent{}, f)
	token, err := CreateToken(t.Context(), c.Inventory, "c", TokenOptions{Pool: "worker", Node: "n", Key: "k", TTL: time.Minute})
	want := NewToken{
		ID: "a1", Token: "a1.secret", Pool: "worker", Node: "n", Pin: "sha256:0", Cluster: "c", Endpoints: []string{"10.0.0.1:9440"}, Expires: time.Unix(90, 0).UTC(),
	}
	if diff := cmp.Diff(want, token); err != nil || diff != "" {
		t.Errorf("token (-want +got):\n%s%v", diff, err)
	}
	if f.made.GetTtlSeconds() != 60 || f.made.GetKey() != "k" || f.made.GetNode() != "n" || f.made.GetPool() != "worker" {
		t.Errorf("request: %v", f.made)
	}
	list, err := Tokens(t.Context(), c.Inventory, "c")
	if diff := cmp.Diff([]Token{{ID: "a1", Pool: "worker", Expires: time.Unix(90, 0).UTC(), UsedBy: "sha256:9"}}, list); err != nil || diff != "" {
		t.Errorf("tokens (-want +got):\n%s%v", diff, err)
	}
	if err := RevokeToken(t.Context(), c.Inventory, "c", "a1"); err != nil {
		t.Error(err)
	}
	if err := RevokeToken(t.Context(), c.Inventory, "c", "b2"); err == nil || err.Error() != "revoke token b2: there is no token b2" {
		t.Errorf("unknown token: %v", err)
	}
}

// enrolling is the agent of a machine that receives requests to join or to reset.
type enrolling struct {
	agenttest.Agent
	join  *nodev1.JoinRequest
	reset *nodev1.ResetRequest
	err   error
}

func (e *enrolling) Join(_ context.Context, r *nodev1.JoinRequest) (*nodev1.JoinReply, error) {
	e.join = r
	return &nodev1.JoinReply{}, e.err
}

func (e *enrolling) Reset(_ context.Context, r *nodev1.ResetRequest) (*nodev1.ResetReply, error) {
	e.reset = r
	return &nodev1.ResetReply{}, e.err
}

func TestReset(t *testing.T) {
	t.Parallel()
	c := newFakeCluster(t, "c")
	a := &enrolling{Agent: agenttest.Agent{Reply: &nodev1.FactsReply{Facts: []byte("{}"), Lock: "committed", Cluster: "id", Node: "n", Key: "sha256:1"}}}
	c.machine("c-work-0", a, nil)
	m, err := Membership(t.Context(), c.Inventory, "c", "c-work-0")
	if diff := cmp.Diff(agentclient.Membership{Machine: "c-work-0", Phase: lock.Committed, Cluster: "id", Node: "n", Key: "sha256:1"}, m); err != nil || diff != "" {
		t.Errorf("member (-want +got):\n%s%v", diff, err)
	}
	if err := ResetMachine(t.Context(), c.Inventory, "c", "c-work-0", m.Cluster, true); err != nil || a.reset.GetCluster() != "id" || !a.reset.GetLost() {
		t.Errorf("reset: %v, %v", a.reset, err)
	}
	a.err = status.Error(codes.FailedPrecondition, "it would cost the quorum")
	if err := ResetMachine(t.Context(), c.Inventory, "c", "c-work-0", "id", false); err == nil || err.Error() != "reset machine c-work-0: it would cost the quorum" {
		t.Errorf("refused: %v", err)
	}
	if _, err := Membership(t.Context(), c.Inventory, "c", "c-work-9"); err == nil || !strings.Contains(err.Error(), "cluster c has c-work-0") {
		t.Errorf("no such machine: %v", err)
	}
}
