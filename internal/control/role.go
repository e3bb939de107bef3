// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// Role runs the control plane's work for one document.
type Role struct {
	Connect func(kubeconfig string) (Cluster, error)                            // fails until the kubeconfig is there; tried again
	Resolve func(ctx context.Context, server netip.AddrPort, name string) error // the error is the reason
	RootCA  string                                                              // path of the CA that pods trust
	Board   *reconcile.Board
	Log     *slog.Logger

	Records func(kubeconfig string) (Records, error) // optional: without them the document's nodes are all; fails like Connect
	Beside  []Service                                // run on every control plane, whoever leads
}

// Service is what every control plane offers beside the leader's work.
type Service struct {
	Name string // its item is control/NAME
	// Run works until ctx ends; it is begun again when it ends earlier. say is told why it does not serve, or nothing when it does.
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

// process is a component's item on this machine's board, whichever form it has there.
func (r Role) process(name string) string { return r.Board.First("staticpod/"+name, "unit/"+name) }

func (r Role) api() string { return r.process("kube-apiserver") }

// dnsUnits are the machine's processes without which the cluster DNS does not answer.
func (r Role) dnsUnits() []string {
	return []string{r.process("kube-controller-manager"), r.process("kube-scheduler"), r.process("kube-proxy")}
}

// Run applies, approves and watches until ctx ends. Everything runs side by side, and nothing is asked of the cluster before this
// run's API server has been started: what an earlier one says is no evidence. With several control planes one does this, and
// the others follow.
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
	r.announce(d)
	group, ctx := errgroup.WithContext(ctx)
	for _, s := range r.Beside {
		group.Go(func() error { return r.beside(ctx, d, s) })
	}
	group.Go(func() error {
		if d.Several() {
			return r.elected(ctx, d)
		}
		return r.lead(ctx, d, unfenced)
	})
	return group.Wait()
}

// lead is the work that one control plane does.
func (r Role) lead(ctx context.Context, d Desired, fence Fence) error {
	group, ctx := errgroup.WithContext(ctx)
	granted := make(chan struct{}) // closed when the role's own rights are there
	group.Go(func() error { return r.makes(ctx, d, fence, granted) })
	group.Go(func() error { return r.keeps(ctx, d, fence, granted) })
	return group.Wait()
}

// makes is what needs every right.
func (r Role) makes(ctx context.Context, d Desired, fence Fence, granted chan struct{}) error {
	cluster, err := r.connect(ctx, config.SuperAdminConf, fence)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.seed(ctx, cluster, r.RootCA) })
	group.Go(func() error { return r.apply(ctx, cluster, d.AddOns, granted) })
	return group.Wait()
}

// keeps is what the role does with its own rights. It begins when they are there, so as not to be refused and to try again later.
func (r Role) keeps(ctx context.Context, d Desired, fence Fence, granted <-chan struct{}) error {
	cluster, err := r.connect(ctx, config.ControlConf, fence)
	if err != nil {
		return err
	}
	select {
	case <-granted:
	case <-ctx.Done():
		return ctx.Err()
	}
	group, ctx := errgroup.WithContext(ctx)
	all := newRoll(d)
	all.awaits = r.hasRecords(d)
	group.Go(func() error { return cluster.Expel(ctx, all.standing, all.leavers) })
	group.Go(func() error { return cluster.ApproveServing(ctx, all.machines, all.open) })
	group.Go(func() error { return r.nodes(ctx, cluster, all) })
	group.Go(func() error { return r.follows(ctx, d, all) })
	group.Go(func() error { return r.dns(ctx, cluster, d) })
	return group.Wait()
}

// announce puts all items on the board, the role itself last, so that "all ready" is never said too early. Of several control
// planes only the leader answers for the cluster's items.
func (r Role) announce(d Desired) {
	for _, s := range r.Beside {
		r.Board.Set(reconcile.Status{Ref: itemService(s.Name), Phase: reconcile.Waiting, For: wait.For{What: r.api()}})
	}
	if !d.Several() {
		r.announceLead(d)
	}
	r.Board.Set(reconcile.Status{Ref: itemRole, Phase: reconcile.Waiting, For: wait.For{What: r.api()}})
}

// announceLead puts on the board what the leader answers for.
func (r Role) announceLead(d Desired) {
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
	for _, name := range slices.Sorted(maps.Keys(newRoll(d).nodes())) {
		dnsNeeds = append(dnsNeeds, itemNode(name))
		needs := append(d.unitsOf(name), r.api())
		r.Board.Set(reconcile.Status{Ref: itemNode(name), Phase: reconcile.Waiting, For: wait.For{What: needs[0]}, Needs: needs})
	}
	r.Board.Set(reconcile.Status{Ref: itemDNS, Phase: reconcile.Waiting, For: wait.For{What: "the DNS deployment"}, Needs: dnsNeeds})
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

func unfenced(c Cluster) (Cluster, error) { return c, nil }

func (r Role) connect(ctx context.Context, kubeconfig string, fence Fence) (cluster Cluster, err error) {
	enough := reconcile.IsStarted
	if strings.HasPrefix(r.api(), "staticpod/") { // begun is only its manifest: the pod before it may still answer
		enough = reconcile.IsReady
	}
	err = r.Board.Await(ctx, enough, []string{r.api(), itemKubeconfig(kubeconfig)}, func(ref string) {
		r.Board.Set(reconcile.Status{Ref: itemRole, Phase: reconcile.Waiting, For: wait.For{What: ref}})
	})
	if err != nil {
		return nil, err
	}
	err = until(ctx, 10*time.Millisecond, func() error {
		cluster, err = r.Connect(kubeconfig)
		return err
	}, func(reason string) {
		r.Board.Set(reconcile.Status{Ref: itemRole, Phase: reconcile.Starting, For: wait.For{What: reason}})
	})
	if err != nil {
		return nil, err
	}
	return fence(cluster)
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
