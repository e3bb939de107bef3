// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// ballot is the state of an election that the test controls.
type ballot struct {
	mu      sync.Mutex // guards the fields below
	leader  string
	changed chan struct{}
}

func newBallot(leader string) *ballot { return &ballot{leader: leader, changed: make(chan struct{})} }

func (b *ballot) elect(leader string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leader = leader
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *ballot) now() (string, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.leader, b.changed
}

func (c *cluster) Lead(ctx context.Context, self string, follow func(holder, why string), lead func(context.Context, Fence) error) error {
	for {
		leader, changed := c.ballot.now()
		why := ""
		if leader == "" {
			why = "no leader is elected"
		}
		follow(leader, why)
		term, end := context.WithCancel(ctx)
		work := make(chan struct{})
		if leader == self {
			go func() {
				defer close(work)
				_ = lead(term, func(c Cluster) (Cluster, error) { return fencedCluster{c.(*cluster)}, nil }) // its error is the end of the term
			}()
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
		end()
		if leader == self {
			<-work
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// fencedCluster is a connection with a fence.
type fencedCluster struct{ *cluster }

func (c fencedCluster) Seed(ctx context.Context, rootCA string) error {
	return c.cluster.Seed(ctx, "fenced "+rootCA)
}

// several returns the document of n1, one of three control planes.
func several(change func(*Desired)) Desired {
	d := document("a")
	main := &d.Config.Pools[0]
	main.Nodes = []config.NodeName{{Name: "n1"}, {Name: "n2"}, {Name: "n3"}}
	main.Labels, main.Taints = map[string]string{"disk": "fast"}, []machine.Taint{{Key: "k", Effect: "NoSchedule"}}
	if change != nil {
		change(&d)
	}
	return d
}

// Only the leader works and has the cluster's items on its board. They are removed when another control plane leads.
func TestElection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, a := newCluster(), &answerer{}
		c.nodeState, c.corednsState, c.ballot = "", "", newBallot("n2")
		r := Role{Board: reconcile.NewBoard(), Log: slog.New(slog.DiscardHandler), Resolve: a.resolve}
		r.Connect = func(string) (Cluster, error) { return c, nil }
		run(t, r, several(nil))
		follower := map[string]string{"control/role": "ready follows n2"}
		says(t, "another leads", r.Board, follower)
		if len(c.applied)+len(c.kept) != 0 || c.approver != nil || a.asked != 0 {
			t.Errorf("a follower: applied %v, kept %v, want nothing", c.applied, c.kept)
		}
		c.ballot.elect("n1")
		says(t, "it leads", r.Board, ready("a"))
		if !slices.Equal(c.applied, []string{"a"}) || len(c.kept) != 1 {
			t.Errorf("applied %v, kept %v", c.applied, c.kept)
		}
		c.ballot.elect("")
		says(t, "no leader", r.Board, map[string]string{"control/role": "starting a leader: no leader is elected"})
		c.ballot.elect("n3")
		says(t, "a third leads", r.Board, map[string]string{"control/role": "ready follows n3"})
		c.ballot.elect("n1")
		says(t, "it leads again", r.Board, ready("a"))
		if len(c.applied) != 2 {
			t.Errorf("applied %v", c.applied)
		}
	})
}

// The leader writes only through connections with its fence.
func TestLeaderIsFenced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, a := newCluster(), &answerer{}
		c.ballot = newBallot("n1")
		r := Role{Board: reconcile.NewBoard(), Log: slog.New(slog.DiscardHandler), Resolve: a.resolve}
		r.Connect = func(string) (Cluster, error) { return c, nil }
		r.RootCA = "/dev/null"
		run(t, r, several(nil))
		synctest.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		if !strings.HasPrefix(c.seeded, "fenced") {
			t.Errorf("seeded %q, want a connection with a fence", c.seeded)
		}
	})
}

// book implements Records in memory.
type book struct {
	mu         sync.Mutex // guards the fields below
	nodes      []admission.Node
	registered []admission.Node
	removed    []admission.Removed
	err        error // of every read, and of Register
	refused    error // of Register only
	changed    func()
}

func (b *book) Register(_ context.Context, nodes []admission.Node) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.registered = nodes
	return errors.Join(b.err, b.refused)
}

func (b *book) Nodes(context.Context) ([]admission.Node, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.nodes), b.err
}

func (b *book) Removed(context.Context) ([]admission.Removed, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.removed), b.err
}

func (b *book) Watch(ctx context.Context, changed func()) error {
	b.mu.Lock()
	b.changed = changed
	b.mu.Unlock()
	changed()
	<-ctx.Done()
	return ctx.Err()
}

func (b *book) set(err error, nodes ...admission.Node) {
	b.mu.Lock()
	b.nodes, b.err = nodes, err
	changed := b.changed
	b.mu.Unlock()
	changed()
}

// Nodes are added and removed with their records. An error removes none.
func TestNodesOfRecords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n1 := admission.Node{Name: "n1", Pool: "main", PodCIDR: netip.MustParsePrefix("10.244.0.0/24"), Key: "k1", Address: netip.MustParseAddr("192.0.2.1")}
		n2 := admission.Node{Name: "n2", Pool: "main", PodCIDR: netip.MustParsePrefix("10.244.1.0/24"), Key: "k2"}
		c, a, b := newCluster(), &answerer{}, &book{nodes: []admission.Node{n1, n2}}
		c.nodeState, c.corednsState, c.ballot = "", "", newBallot("n1")
		r := Role{Board: reconcile.NewBoard(), Log: slog.New(slog.DiscardHandler), Resolve: a.resolve}
		r.Connect = func(string) (Cluster, error) { return c, nil }
		r.Records = func(string) (Records, error) { return b, nil }
		run(t, r, several(func(d *Desired) { d.Records = []admission.Node{n1, n2} }))
		want := ready("a")
		want["control/node/n2"], want["control/records"] = "ready", "ready"
		says(t, "two records", r.Board, want)
		if len(b.registered) != 2 {
			t.Errorf("registered %v", b.registered)
		}
		kept := c.kept[slices.IndexFunc(c.kept, func(n Node) bool { return n.Name == "n2" })]
		wantNode := Node{
			Name: "n2", PodCIDR: n2.PodCIDR, Labels: map[string]string{"disk": "fast", "node-role.kubernetes.io/control-plane": ""},
			Taints: []machine.Taint{{Key: "k", Effect: "NoSchedule"}},
		}
		if diff := cmp.Diff(wantNode, kept, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Errorf("n2 (-want +got):\n%s", diff)
		}

		before := len(c.kept)
		n2.Address = netip.MustParseAddr("192.0.2.2")
		n3 := admission.Node{Name: "n3", Pool: "main", PodCIDR: netip.MustParsePrefix("10.244.2.0/24")}
		b.set(nil, n1, n2, n3)
		want["control/node/n3"] = "ready"
		says(t, "one more", r.Board, want)
		if len(c.kept) != before+1 {
			t.Errorf("a new address: kept %v, want only the new node", c.kept[before:])
		}
		if m := c.approver(); len(m["n2"].Addresses) != 1 || m["n2"].Key != "k2" || len(m["n3"].Addresses) != 0 {
			t.Errorf("machines for the approver: got %v", m)
		}
		select {
		case <-c.again:
		default:
			t.Error("the approver is not notified")
		}

		b.set(errors.New("no answer"))
		want["control/records"] = "failing no answer"
		says(t, "the records cannot be read", r.Board, want)
		n2.Removing = true
		b.mu.Lock()
		b.nodes, b.err = []admission.Node{n1, n2}, nil
		b.mu.Unlock()
		time.Sleep(time.Second)
		want["control/records"] = "ready"
		delete(want, "control/node/n3")
		delete(want, "control/node/n2")
		says(t, "they can be read, n3 is removed, n2 is being removed", r.Board, want)
		if m := c.approver(); len(m["n2"].Addresses) != 0 {
			t.Errorf("a machine that is being removed has addresses: %v", m)
		}
		n2.Removing = false
		b.set(nil, n1, n2)
		want["control/node/n2"] = "ready"
		says(t, "the removal of n2 is undone", r.Board, want)
		b.set(nil, n1)
		delete(want, "control/node/n2")
		says(t, "the document's second node is removed", r.Board, want)
	})
}

func TestServices(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		c.ballot = newBallot("n2")
		runs, serve := 0, make(chan struct{})
		r := Role{Board: reconcile.NewBoard(), Log: slog.New(slog.DiscardHandler)}
		r.Connect = func(string) (Cluster, error) { return c, nil }
		r.Services = []Service{{Name: "join", Run: func(ctx context.Context, _ Desired, say func(string)) error {
			if runs++; runs == 1 {
				return errors.New("listen tcp :9440: address already in use")
			}
			say("its certificate")
			<-serve
			say("")
			<-ctx.Done()
			return ctx.Err()
		}}}
		run(t, r, several(nil))
		want := map[string]string{"control/role": "ready follows n2", "control/join": "failing listen tcp :9440: address already in use"}
		says(t, "it fails", r.Board, want)
		time.Sleep(minRestart)
		want["control/join"] = "starting its certificate"
		says(t, "it is started again", r.Board, want)
		close(serve)
		want["control/join"] = "ready"
		says(t, "it serves", r.Board, want)
	})
}
