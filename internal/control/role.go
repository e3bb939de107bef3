// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/core/objects"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// Cluster is the Kubernetes API as the role needs it. Every method blocks until it has succeeded or ctx ends; the API being
// away is waited out, with the reason told to waiting.
type Cluster interface {
	// Apply makes the cluster have exactly these add-ons; done is told of each that is finished.
	Apply(ctx context.Context, addOns []objects.AddOn, waiting func(addOn, reason string), done func(addOn string)) (changed bool, err error)
	// Seed makes what the first pods wait for, in the namespaces that every cluster has.
	Seed(ctx context.Context, rootCA string) error
	ApproveServing(ctx context.Context, addresses func(node string) ([]netip.Addr, bool)) error
	SetNode(ctx context.Context, n Node) error
	AwaitNode(ctx context.Context, name string, waiting func(reason string)) error
	AwaitDeployment(ctx context.Context, w Workload, waiting func(reason string)) error
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
)

func itemAddOn(name string) string { return "control/addon/" + name }
func itemNode(name string) string  { return "control/node/" + name }

// Run applies, approves and watches until ctx ends. Everything runs side by side; what depends on the API waits for it.
func (r Role) Run(ctx context.Context, data []byte) error {
	doc, err := Decode(data)
	if err != nil {
		return err
	}
	r.announce(doc)
	cluster, err := r.connect(ctx, doc.Kubeconfig)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return cluster.ApproveServing(ctx, doc.addresses) })
	group.Go(func() error { return r.seed(ctx, cluster, doc.RootCA) })
	group.Go(func() error { return r.apply(ctx, cluster, doc.AddOns) })
	for _, n := range doc.Nodes {
		group.Go(func() error { return r.node(ctx, cluster, n) })
	}
	group.Go(func() error { return r.dns(ctx, cluster, doc) })
	return group.Wait()
}

// announce puts all items on the board before the role itself is ready, so that "all ready" is never said too early.
func (r Role) announce(doc Document) {
	for _, a := range doc.AddOns {
		r.Board.Set(reconcile.Status{Ref: itemAddOn(a.Name), Phase: reconcile.Waiting, For: "unit/kube-apiserver", Needs: []string{"unit/kube-apiserver"}})
	}
	dnsNeeds := []string{"unit/kube-controller-manager", "unit/kube-scheduler", "unit/kube-proxy"}
	for _, a := range doc.AddOns {
		dnsNeeds = append(dnsNeeds, itemAddOn(a.Name))
	}
	for _, n := range doc.Nodes {
		dnsNeeds = append(dnsNeeds, itemNode(n.Name))
		r.Board.Set(reconcile.Status{Ref: itemNode(n.Name), Phase: reconcile.Waiting, For: "unit/kubelet", Needs: []string{"unit/kubelet", "unit/kube-apiserver"}})
	}
	r.Board.Set(reconcile.Status{Ref: itemDNS, Phase: reconcile.Waiting, For: "the DNS deployment", Needs: dnsNeeds})
	r.Board.Set(reconcile.Status{Ref: itemRole, Phase: reconcile.Ready})
}

// seed is a head start and nothing more: what it cannot make, the controller-manager makes.
func (r Role) seed(ctx context.Context, cluster Cluster, path string) error {
	ca, err := os.ReadFile(path)
	if err == nil {
		err = cluster.Seed(ctx, string(ca))
	}
	if err != nil && ctx.Err() == nil {
		r.Log.Warn("first pods wait for the controller-manager", "error", err)
	}
	return nil
}

// apply brings the add-ons to the cluster. An object that the server refuses is shown, and tried again: what it lacks may come.
func (r Role) apply(ctx context.Context, cluster Cluster, addOns []objects.AddOn) error {
	return r.again(ctx, itemRole, func() error {
		changed, err := cluster.Apply(ctx, addOns, func(addOn, reason string) {
			ref := itemAddOn(addOn)
			if !wanted(addOns, addOn) { // the inventory, or what goes away: no item of its own that could become ready
				ref = itemRole
			}
			r.Board.Set(reconcile.Status{Ref: ref, Phase: reconcile.Starting, For: reason, Provider: "kube-apiserver"})
		}, func(addOn string) {
			r.Board.Set(reconcile.Status{Ref: itemAddOn(addOn), Phase: reconcile.Ready})
		})
		if err != nil {
			return err
		}
		r.Board.Set(reconcile.Status{Ref: itemRole, Phase: reconcile.Ready})
		r.Log.Info("add-ons applied", "changed", changed)
		return nil
	})
}

// node is ready when its kubelet says so and the machine's record is in the Node. A record that is refused stops nothing else.
func (r Role) node(ctx context.Context, cluster Cluster, n Node) error {
	ref := itemNode(n.Name)
	return r.item(ref, "kubelet of "+n.Name, func(waiting func(string)) error {
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return r.again(ctx, ref, func() error { return cluster.SetNode(ctx, n) }) })
		group.Go(func() error { return cluster.AwaitNode(ctx, n.Name, waiting) })
		return group.Wait()
	})
}

// again does what may be refused until it is not, later each time, and shows the error at an item meanwhile.
func (r Role) again(ctx context.Context, ref string, do func() error) error {
	for delay := time.Second; ; delay = min(2*delay, time.Minute) {
		err := do()
		if err == nil || ctx.Err() != nil {
			return err
		}
		r.Log.Warn("refused, trying again", "item", ref, "error", err, "in", delay)
		r.Board.Set(reconcile.Status{Ref: ref, Phase: reconcile.Failing, Error: err.Error()})
		timer := time.NewTimer(delay)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}

func wanted(addOns []objects.AddOn, name string) bool {
	return slices.ContainsFunc(addOns, func(a objects.AddOn) bool { return a.Name == name })
}

// dns is ready when the cluster DNS has answered a question, through its Service address.
func (r Role) dns(ctx context.Context, cluster Cluster, doc Document) error {
	return r.item(itemDNS, "CoreDNS and kube-proxy", func(waiting func(string)) error {
		for _, w := range doc.Deployments {
			if err := cluster.AwaitDeployment(ctx, w, waiting); err != nil {
				return err
			}
		}
		name := "kubernetes.default.svc." + doc.DNS.Domain + "."
		return until(ctx, 20*time.Millisecond, func() error { return r.Resolve(ctx, netip.AddrPortFrom(doc.DNS.Address, 53), name) }, waiting)
	})
}

// item reports one wait on the board from its beginning to ready.
func (r Role) item(ref, provider string, work func(waiting func(string)) error) error {
	r.Board.Set(reconcile.Status{Ref: ref, Phase: reconcile.Starting, Provider: provider})
	err := work(func(reason string) {
		r.Board.Set(reconcile.Status{Ref: ref, Phase: reconcile.Starting, For: reason, Provider: provider})
	})
	if err != nil {
		return err
	}
	r.Board.Set(reconcile.Status{Ref: ref, Phase: reconcile.Ready})
	return nil
}

func (r Role) connect(ctx context.Context, kubeconfig string) (cluster Cluster, err error) {
	err = until(ctx, 10*time.Millisecond, func() error {
		cluster, err = r.Connect(kubeconfig)
		return err
	}, func(reason string) {
		r.Board.Set(reconcile.Status{Ref: itemRole, Phase: reconcile.Starting, For: reason})
	})
	if err == nil {
		r.Board.Set(reconcile.Status{Ref: itemRole, Phase: reconcile.Ready})
	}
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

func (d Document) addresses(node string) ([]netip.Addr, bool) {
	for _, n := range d.Nodes {
		if n.Name == node {
			return n.Addresses, true
		}
	}
	return nil, false
}
