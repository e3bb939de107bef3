// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/core/objects"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// Cluster is the Kubernetes API as the role needs it. The API being away is waited out, with the reason told.
type Cluster interface {
	Applier
	Keeper
}

// Applier is what needs every right: it makes what the cluster should have.
type Applier interface {
	// Apply makes the cluster have exactly these add-ons. It blocks until it has succeeded or an object is refused.
	Apply(ctx context.Context, addOns []objects.AddOn, tell Teller) error
	// Drift tells, until ctx ends, of each object of the add-ons that is no longer as it was.
	Drift(ctx context.Context, addOns []objects.AddOn, changed func(object string)) error
	// Seed makes what the first pods wait for, in the namespaces that every cluster has.
	Seed(ctx context.Context, rootCA string) error
}

// Keeper is what the role does until ctx ends, with rights for that alone. say is told each time a state changes: the reason why
// it is not as it should be, or nothing when it is.
type Keeper interface {
	ApproveServing(ctx context.Context, addresses func(node string) ([]netip.Addr, bool)) error
	KeepNode(ctx context.Context, n Node, say, changed func(string)) error
	WatchDeployment(ctx context.Context, w Workload, say func(reason string)) error
}

// Teller is told how an apply gets on, one call at a time.
type Teller struct {
	Waiting func(addOn, reason string)
	Changed func(object string) // before the add-on is done
	Done    func(addOn string)
}

// Role runs the control plane's work for one document.
type Role struct {
	Connect func(kubeconfig string) (Cluster, error)                            // fails until the kubeconfig is there; tried again
	Resolve func(ctx context.Context, server netip.AddrPort, name string) error // the error is the reason
	Board   *reconcile.Board
	Log     *slog.Logger
}

// Items on the board.
const (
	itemRole = "control/role"
	itemDNS  = "control/dns"

	itemAPI     = "unit/kube-apiserver"
	itemKubelet = "unit/kubelet"
)

func itemAddOn(name string) string      { return "control/addon/" + name }
func itemNode(name string) string       { return "control/node/" + name }
func itemKubeconfig(path string) string { return "kubeconfig/" + path }

// dnsUnits are the machine's units without which the cluster DNS does not answer.
func dnsUnits() []string {
	return []string{"unit/kube-controller-manager", "unit/kube-scheduler", "unit/kube-proxy"}
}

// Run applies, approves and watches until ctx ends. Everything runs side by side, and nothing is asked of the cluster before this
// run's API server has been started: what an earlier one says is no evidence.
func (r Role) Run(ctx context.Context, data []byte) error {
	doc, err := Decode(data)
	if err != nil {
		return err
	}
	r.announce(doc)
	group, ctx := errgroup.WithContext(ctx)
	granted := make(chan struct{}) // closed when the role's own rights are there
	group.Go(func() error { return r.makes(ctx, doc, granted) })
	group.Go(func() error { return r.keeps(ctx, doc, granted) })
	return group.Wait()
}

// makes is what needs every right.
func (r Role) makes(ctx context.Context, doc Document, granted chan struct{}) error {
	cluster, err := r.connect(ctx, doc.applyKubeconfig())
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.seed(ctx, cluster, doc.RootCA) })
	group.Go(func() error { return r.apply(ctx, cluster, doc.AddOns, granted) })
	return group.Wait()
}

// keeps is what the role does with its own rights. It begins when they are there, so as not to be refused and to try again later.
func (r Role) keeps(ctx context.Context, doc Document, granted <-chan struct{}) error {
	cluster, err := r.connect(ctx, doc.Kubeconfig)
	if err != nil {
		return err
	}
	select {
	case <-granted:
	case <-ctx.Done():
		return ctx.Err()
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return cluster.ApproveServing(ctx, doc.addresses) })
	for _, n := range doc.Nodes {
		group.Go(func() error { return r.node(ctx, cluster, n) })
	}
	group.Go(func() error { return r.dns(ctx, cluster, doc) })
	return group.Wait()
}

// announce puts all items on the board, the role itself last, so that "all ready" is never said too early.
func (r Role) announce(doc Document) {
	for _, a := range doc.AddOns {
		r.Board.Set(reconcile.Status{Ref: itemAddOn(a.Name), Phase: reconcile.Waiting, For: itemAPI, Needs: []string{itemAPI}})
	}
	dnsNeeds := dnsUnits()
	for _, a := range doc.AddOns {
		dnsNeeds = append(dnsNeeds, itemAddOn(a.Name))
	}
	for _, n := range doc.Nodes {
		dnsNeeds = append(dnsNeeds, itemNode(n.Name))
		r.Board.Set(reconcile.Status{Ref: itemNode(n.Name), Phase: reconcile.Waiting, For: itemKubelet, Needs: []string{itemKubelet, itemAPI}})
	}
	r.Board.Set(reconcile.Status{Ref: itemDNS, Phase: reconcile.Waiting, For: "the DNS deployment", Needs: dnsNeeds})
	r.Board.Set(reconcile.Status{Ref: itemRole, Phase: reconcile.Waiting, For: itemAPI})
}

// seed is a head start and nothing more: what it cannot make, the controller-manager makes.
func (r Role) seed(ctx context.Context, cluster Applier, path string) error {
	ca, err := os.ReadFile(path)
	if err == nil {
		err = cluster.Seed(ctx, string(ca))
	}
	if err != nil && ctx.Err() == nil {
		r.Log.Warn("first pods wait for the controller-manager", "error", err)
	}
	return nil
}

func (r Role) connect(ctx context.Context, kubeconfig string) (cluster Cluster, err error) {
	err = r.Board.Await(ctx, reconcile.IsBegun, []string{itemAPI, itemKubeconfig(kubeconfig)}, func(ref string) {
		r.Board.Set(reconcile.Status{Ref: itemRole, Phase: reconcile.Waiting, For: ref})
	})
	if err != nil {
		return nil, err
	}
	err = until(ctx, 10*time.Millisecond, func() error {
		cluster, err = r.Connect(kubeconfig)
		return err
	}, func(reason string) {
		r.Board.Set(reconcile.Status{Ref: itemRole, Phase: reconcile.Starting, For: reason})
	})
	return cluster, err
}

// until asks again and again, and tells the reason each time it changes.
func until(ctx context.Context, every time.Duration, ask func() error, waiting func(reason string)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for last := ""; ; {
		err := ask()
		if err == nil {
			return nil
		}
		if reason := err.Error(); reason != last {
			waiting(reason)
			last = reason
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
