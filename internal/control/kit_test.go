// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/objects"
	"github.com/slipway-project/slipway/internal/core/spec"
	"github.com/slipway-project/slipway/internal/kube"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// cluster is a Kubernetes API in memory. The test sets the states that it reports.
type cluster struct {
	mu       sync.Mutex // guards the fields below
	applied  []string
	refuse   map[string]int // number of refusals per add-on
	lacks    map[string]bool
	kept     []Node
	seeded   string
	approver func() map[string]kube.Machine
	again    <-chan struct{}
	standing func() kube.NodeStates
	ballot   *ballot // nil without an election

	drifted                 func(object string)
	node, coredns           func(reason string)
	nodes                   map[string]func(reason string)
	nodeChanged             func(what string)
	nodeState, corednsState string
}

func newCluster() *cluster {
	return &cluster{
		refuse: map[string]int{}, lacks: map[string]bool{}, nodes: map[string]func(string){},
		nodeState: "the network is not ready", corednsState: "0 of 1 replicas are available",
	}
}

func (c *cluster) Seed(_ context.Context, rootCA string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seeded = rootCA
	if c.refuse["seeds"] > 0 {
		return errors.New("seeds are refused")
	}
	return nil
}

func (c *cluster) Apply(_ context.Context, addOns []objects.AddOn, progress Progress) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, a := range addOns {
		if c.refuse[a.Name]--; c.refuse[a.Name] >= 0 {
			progress.Waiting(a.Name, "ConfigMap x: it is being applied")
			errs = append(errs, errors.New(a.Name+": namespaces \"shop\" not found"))
			continue
		}
		c.applied = append(c.applied, a.Name)
		if c.lacks[a.Name] {
			delete(c.lacks, a.Name)
			progress.Changed("Deployment " + a.Name)
		}
		progress.Done(a.Name)
	}
	progress.Waiting("", "the inventory is being written")
	return errors.Join(errs...)
}

func (c *cluster) Drift(ctx context.Context, _ []objects.AddOn, changed func(string)) error {
	c.mu.Lock()
	c.drifted = changed
	c.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

func (c *cluster) ApproveServing(ctx context.Context, known func() map[string]kube.Machine, changed <-chan struct{}) error {
	c.mu.Lock()
	c.approver, c.again = known, changed
	c.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

func (c *cluster) Expel(ctx context.Context, standing func() kube.NodeStates, _ <-chan struct{}) error {
	c.mu.Lock()
	c.standing = standing
	c.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

func (c *cluster) KeepNode(ctx context.Context, n Node, say, changed func(string)) error {
	c.mu.Lock()
	c.kept, c.node, c.nodeChanged = append(c.kept, n), say, changed
	c.nodes[n.Name] = say
	say(c.nodeState)
	c.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

func (c *cluster) WatchDeployment(ctx context.Context, _, _ string, say func(string)) error {
	c.mu.Lock()
	c.coredns = say
	say(c.corednsState)
	c.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

func document(addOns ...string) Desired {
	pool := config.Pool{Pool: spec.Pool{Name: "main", Roles: []string{"control-plane"}}, Nodes: []config.NodeName{{Name: "n1"}}}
	n1 := admission.Node{Name: "n1", Pool: "main", Address: netip.MustParseAddr("192.0.2.1"), PodCIDR: netip.MustParsePrefix("10.244.0.0/24"), JoinedAt: time.Unix(1, 0)}
	d := Desired{
		Document: Document{Version: Version, Cluster: "dev", Self: "n1", Records: []admission.Node{n1}},
		Config:   config.Cluster{Pools: []config.Pool{pool}},
	}
	d.Config.DNSAddress, d.Config.ClusterDomain = netip.MustParseAddr("10.96.0.10"), "cluster.local"
	for _, name := range addOns {
		d.AddOns = append(d.AddOns, objects.AddOn{Name: name})
	}
	return d
}

// run starts a role in a synctest bubble. The role ends with the test.
func run(t *testing.T, r Role, d Desired) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.run(ctx, d) }()
	t.Cleanup(func() {
		cancel()
		begun := time.Now()
		if err := <-ended; !errors.Is(err, context.Canceled) || time.Since(begun) > time.Second {
			t.Errorf("the role ended after %s with %v, want context.Canceled at once", time.Since(begun), err)
		}
	})
	synctest.Wait()
}

// board returns the text of each item on the board.
func board(b *reconcile.Board) map[string]string {
	out := map[string]string{}
	all, _ := b.All()
	for _, s := range all {
		out[s.Ref] = strings.TrimSpace(string(s.Phase) + " " + s.What + s.Error)
	}
	return out
}

func says(t *testing.T, when string, b *reconcile.Board, want map[string]string) {
	t.Helper()
	synctest.Wait()
	if diff := cmp.Diff(want, board(b)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

// answerer is a DNS server whose answer the test sets.
type answerer struct {
	mu    sync.Mutex // guards the fields below
	err   error
	asked int
}

func (a *answerer) set(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

func (a *answerer) resolve(_ context.Context, server netip.AddrPort, name string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked++
	if server.String() != "10.96.0.10:53" || name != apiName {
		return errors.New("unexpected query to " + server.String() + " for " + name)
	}
	return a.err
}

// up runs a role whose cluster is ready.
func up(t *testing.T, addOns ...string) (*cluster, *answerer, Role) {
	t.Helper()
	c, a := newCluster(), &answerer{}
	c.nodeState, c.corednsState = "", ""
	r := Role{Board: reconcile.NewBoard(), Log: slog.New(slog.DiscardHandler), Resolve: a.resolve}
	r.Connect = func(string) (Cluster, error) { return c, nil }
	run(t, r, document(addOns...))
	return c, a, r
}

func ready(addOns ...string) map[string]string {
	out := map[string]string{"control/role": "ready", "control/node/n1": "ready", "control/dns": "ready"}
	for _, a := range addOns {
		out["control/addon/"+a] = "ready"
	}
	return out
}
