// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// Role runs the control role for one document.
type Role struct {
	Connect func(kubeconfig string) (Cluster, error)                            // called again until it succeeds; fails while there is no kubeconfig
	Resolve func(ctx context.Context, server netip.AddrPort, name string) error // the error is the reason for a status
	RootCA  string                                                              // path of the CA that pods trust
	Board   *reconcile.Board
	Log     *slog.Logger

	Records  func(kubeconfig string) (Records, error) // optional: without it, the document's nodes are all nodes; called again like Connect
	Services []Service                                // run on every control plane, not only on the leader
}

// Service is what every control plane runs, not only the leader.
type Service struct {
	Name string // its item is control/NAME
	// Run works until ctx ends, and is started again if it returns earlier. It calls say with the reason why it does not serve, or with
	// "" when it does.
	Run func(ctx context.Context, d Desired, say func(reason string)) error
}

// Items on the board.
const (
	itemRole    = "control/role"
	itemDNS     = "control/dns"
	itemRecords = "control/records"

	itemKubelet = "unit/kubelet"
)

func itemAddOn(name string) string      { return "control/addon/" + name }
func itemService(name string) string    { return "control/" + name }
func itemNode(name string) string       { return "control/node/" + name }
func itemKubeconfig(path string) string { return "kubeconfig/" + path }

// process returns the item of a component on this machine's board: a static pod or a unit.
func (r Role) process(name string) string { return r.Board.First("staticpod/"+name, "unit/"+name) }

func (r Role) api() string { return r.process("kube-apiserver") }

// dnsUnits returns the items of this machine that the cluster DNS needs.
func (r Role) dnsUnits() []string {
	return []string{r.process("kube-controller-manager"), r.process("kube-scheduler"), r.process("kube-proxy")}
}

// Run runs the role with an encoded [Document] until ctx ends. It sends nothing to the cluster before the API server of this run was
// started, because the answers of an earlier one may be outdated. Of several control planes, only the leader does the cluster's work.
func (r Role) Run(ctx context.Context, data []byte) error {
	doc, err := Decode(data)
	if err != nil {
		return err
	}
	d, err := doc.Desired()
	if err != nil {
		return fmt.Errorf("read control document: %w", err)
	}
	return r.run(ctx, d)
}

func (r Role) run(ctx context.Context, d Desired) error {
	// The role's own item is announced last, so that the board never shows all items ready too early.
	for _, s := range r.Services {
		r.Board.Set(reconcile.Status{Ref: itemService(s.Name), Phase: reconcile.Waiting, For: wait.For{What: r.api()}})
	}
	if !d.Several() {
		r.announce(d)
	}
	r.Board.Set(reconcile.Status{Ref: itemRole, Phase: reconcile.Waiting, For: wait.For{What: r.api()}})

	group, ctx := errgroup.WithContext(ctx)
	for _, s := range r.Services {
		group.Go(func() error {
			return r.persist(ctx, itemService(s.Name), func(ctx context.Context) error {
				i := &item{board: r.Board, ref: itemService(s.Name), provider: "the agent of this machine"}
				return s.Run(ctx, d, i.set)
			})
		})
	}
	group.Go(func() error {
		if d.Several() {
			return r.elect(ctx, d)
		}
		return r.lead(ctx, d, unfenced)
	})
	return group.Wait()
}

// elect takes part in the election, and leads while this control plane is elected.
//
//	waiting ──API server──► starting ──another leads──► ready, follows it ──┐
//	                           │ ▲                           │              │
//	                           │ └──────no leader────────────┼──────────────┤
//	                           └────────elected──────────────┴──► leads ────┘
func (r Role) elect(ctx context.Context, d Desired) error {
	cluster, err := r.connect(ctx, config.SuperAdminConf, unfenced)
	if err != nil {
		return err
	}
	follow := func(holder, why string) {
		s := reconcile.Status{Ref: itemRole, Phase: reconcile.Starting}
		switch {
		case holder == d.Self: // lead sets further statuses
			s.For = wait.For{What: "the cluster's objects"}
		case holder != "":
			s.Phase, s.For = reconcile.Ready, wait.For{What: "follows " + holder}
		default:
			s.For = wait.For{What: "a leader: " + why, Who: "kube-apiserver"}
		}
		r.Board.Set(s)
	}
	return cluster.Lead(ctx, d.Self, follow, func(leading context.Context, fence Fence) error {
		r.announce(d)
		r.Log.Info("this control plane leads", "node", d.Self)
		err := r.lead(leading, d, fence)
		if leading.Err() != nil && ctx.Err() == nil {
			r.withdraw()
		}
		return err
	})
}

// announce puts the leader's items on the board.
func (r Role) announce(d Desired) {
	for _, a := range d.AddOns {
		r.Board.Set(reconcile.Status{Ref: itemAddOn(a.Name), Phase: reconcile.Waiting, For: wait.For{What: r.api()}, Needs: []string{r.api()}})
	}
	dnsNeeds := r.dnsUnits()
	for _, a := range d.AddOns {
		dnsNeeds = append(dnsNeeds, itemAddOn(a.Name))
	}
	if r.hasRecords(d) {
		r.Board.Set(reconcile.Status{Ref: itemRecords, Phase: reconcile.Waiting, For: wait.For{What: r.api()}, Needs: []string{r.api()}})
	}
	for _, name := range slices.Sorted(maps.Keys(newNodeSet(d).nodes())) {
		dnsNeeds = append(dnsNeeds, itemNode(name))
		needs := append(d.unitsOf(name), r.api())
		r.Board.Set(reconcile.Status{Ref: itemNode(name), Phase: reconcile.Waiting, For: wait.For{What: needs[0]}, Needs: needs})
	}
	r.Board.Set(reconcile.Status{Ref: itemDNS, Phase: reconcile.Waiting, For: wait.For{What: "the DNS deployment"}, Needs: dnsNeeds})
}

// withdraw removes the leader's items from the board when this control plane no longer leads.
func (r Role) withdraw() {
	r.Board.Set(reconcile.Status{Ref: itemRole, Phase: reconcile.Starting, For: wait.For{What: "a leader"}})
	statuses, _ := r.Board.All()
	for _, s := range statuses {
		if strings.HasPrefix(s.Ref, itemAddOn("")) || strings.HasPrefix(s.Ref, itemNode("")) || s.Ref == itemDNS || s.Ref == itemRecords {
			r.Board.Drop(s.Ref)
		}
	}
}

// lead does the work of a single control plane or of the leader, until ctx ends.
func (r Role) lead(ctx context.Context, d Desired, fence Fence) error {
	group, ctx := errgroup.WithContext(ctx)
	granted := make(chan struct{}) // closed when the role's own rights exist
	group.Go(func() error {        // with all rights
		cluster, err := r.connect(ctx, config.SuperAdminConf, fence)
		if err != nil {
			return err
		}
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return r.seed(ctx, cluster, r.RootCA) })
		group.Go(func() error { return r.apply(ctx, cluster, d.AddOns, granted) })
		return group.Wait()
	})
	group.Go(func() error { // with the role's own rights
		cluster, err := r.connect(ctx, config.ControlConf, fence)
		if err != nil {
			return err
		}
		select {
		case <-granted:
		case <-ctx.Done():
			return ctx.Err()
		}
		all := newNodeSet(d)
		all.needsRecords = r.hasRecords(d)
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return cluster.Expel(ctx, all.states, all.expel) })
		group.Go(func() error { return cluster.ApproveServing(ctx, all.machines, all.approve) })
		group.Go(func() error { return r.keepNodes(ctx, cluster, all) })
		group.Go(func() error { return r.watchRecords(ctx, d, all) })
		group.Go(func() error { return r.dns(ctx, cluster, d) })
		return group.Wait()
	})
	return group.Wait()
}

// connect waits for this run's API server and the kubeconfig, and connects.
func (r Role) connect(ctx context.Context, kubeconfig string, fence Fence) (Cluster, error) {
	enough := reconcile.IsStarted
	if strings.HasPrefix(r.api(), "staticpod/") { // a started static pod is only a manifest: the previous pod may still answer
		enough = reconcile.IsReady
	}
	err := r.Board.Await(ctx, enough, []string{r.api(), itemKubeconfig(kubeconfig)}, func(ref string) {
		r.Board.Set(reconcile.Status{Ref: itemRole, Phase: reconcile.Waiting, For: wait.For{What: ref}})
	})
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for last := ""; ; {
		cluster, err := r.Connect(kubeconfig)
		if err == nil {
			return fence(cluster)
		}
		if reason := err.Error(); reason != last {
			r.Board.Set(reconcile.Status{Ref: itemRole, Phase: reconcile.Starting, For: wait.For{What: reason}})
			last = reason
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
}

// item is an item of the board that is watched permanently: it is failing whenever its state is bad after it was ready once.
type item struct {
	board         *reconcile.Board
	ref, provider string

	mu       sync.Mutex // guards the field below
	wasReady bool
}

// set puts a state on the board: the reason why it is not as desired, or "" when it is.
func (i *item) set(reason string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case reason == "":
		i.wasReady = true
		i.board.Set(reconcile.Status{Ref: i.ref, Phase: reconcile.Ready})
	case i.wasReady:
		i.board.Set(reconcile.Status{Ref: i.ref, Phase: reconcile.Failing, Error: reason, For: wait.For{Who: i.provider}})
	default:
		i.board.Set(reconcile.Status{Ref: i.ref, Phase: reconcile.Starting, For: wait.For{What: reason, Who: i.provider}})
	}
}

// after waits until the items that ref needs are ready, and then starts ref.
func (r Role) after(ctx context.Context, ref, provider string, needs ...string) (*item, error) {
	err := r.Board.Await(ctx, reconcile.IsReady, needs, func(need string) {
		r.Board.Set(reconcile.Status{Ref: ref, Phase: reconcile.Waiting, For: wait.For{What: need}})
	})
	if err != nil {
		return nil, err
	}
	r.Board.Set(reconcile.Status{Ref: ref, Phase: reconcile.Starting, For: wait.For{Who: provider}})
	return &item{board: r.Board, ref: ref, provider: provider}, nil
}
