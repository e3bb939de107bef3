// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/kube"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// item is one of the board's that stays under watch: it falls when its state turns bad and rises when it is good again.
type item struct {
	board         *reconcile.Board
	ref, provider string

	mu    sync.Mutex // guards the field below
	risen bool       // it was ready once
}

// say puts a state on the board: why it is not as it should be, or nothing when it is.
func (i *item) say(reason string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case reason == "":
		i.risen = true
		i.board.Set(reconcile.Status{Ref: i.ref, Phase: reconcile.Ready})
	case i.risen:
		i.board.Set(reconcile.Status{Ref: i.ref, Phase: reconcile.Failing, Error: reason, For: wait.For{Who: i.provider}})
	default:
		i.board.Set(reconcile.Status{Ref: i.ref, Phase: reconcile.Starting, For: wait.For{What: reason, Who: i.provider}})
	}
}

// after waits until this run has made other items ready, and then starts an item.
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

// node is ready while its kubelet says so and the machine's record is in the Node. The record goes in as soon as there is a Node,
// the kubelet's word counts from when this run's kubelet is up.
func (r Role) node(ctx context.Context, cluster Keeper, n Node, all *roll) error {
	var mu sync.Mutex
	last, told := "nothing is known of it yet", func(string) {}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return cluster.KeepNode(ctx, n, func(reason string) {
			if reason == kube.Absent(n.Name) && all.awaited(n.Name) {
				reason = "the machine has not joined"
			}
			mu.Lock()
			defer mu.Unlock()
			last = reason
			told(reason)
		}, func(what string) {
			r.Board.CountStep()
			r.Log.Info("changed", "what", what)
		})
	})
	group.Go(func() error {
		i, err := r.after(ctx, itemNode(n.Name), "kubelet of "+n.Name, all.desired.unitsOf(n.Name)...)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		told = i.say
		told(last)
		return nil
	})
	return group.Wait()
}

// unitsOf are the items of this machine without which the node is not ready. Another machine's are on its own board.
func (d Desired) unitsOf(node string) []string {
	if d.Self == "" || d.Self == node {
		return []string{itemKubelet}
	}
	return nil
}

// nodes keeps every node of the roll, as it is now and as it becomes, until ctx ends.
func (r Role) nodes(ctx context.Context, cluster Keeper, all *roll) error {
	kept := map[string]*keeping{}
	defer func() {
		for _, k := range kept {
			k.end()
		}
	}()
	for {
		want := all.nodes()
		for name, k := range kept {
			n, wanted := want[name]
			if wanted && k.same(n) {
				continue
			}
			k.end()
			delete(kept, name)
			if !wanted {
				r.Board.Drop(itemNode(name))
				r.Log.Info("the node is not kept any more", "node", name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(want)) {
			if kept[name] == nil {
				kept[name] = r.keep(ctx, cluster, want[name], all)
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-all.members:
		}
	}
}

// keeping is one node under watch.
type keeping struct {
	node   Node
	cancel context.CancelFunc
	ended  chan struct{}
}

func (r Role) keep(ctx context.Context, cluster Keeper, n Node, all *roll) *keeping {
	ctx, cancel := context.WithCancel(ctx)
	k := &keeping{n, cancel, make(chan struct{})}
	go func() {
		defer close(k.ended)
		_ = r.node(ctx, cluster, n, all) // the context's error and no other
	}()
	return k
}

func (k *keeping) end() {
	k.cancel()
	<-k.ended
}

// same leaves the addresses out, which only the approver needs.
func (k *keeping) same(n Node) bool {
	return k.node.PodCIDR == n.PodCIDR && maps.Equal(k.node.Labels, n.Labels) && slices.Equal(k.node.Taints, n.Taints)
}

const (
	askSoon  = 20 * time.Millisecond // while somebody waits for the first answer
	askAgain = 10 * time.Second
	silences = 3 // in a row are needed to call a DNS that has answered silent: packets get lost
)

// dns is ready while its deployments are available and it answers through its Service address.
func (r Role) dns(ctx context.Context, cluster Keeper, d Desired) error {
	i, err := r.after(ctx, itemDNS, "CoreDNS and kube-proxy", append(r.dnsUnits(), d.carriers()...)...)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	a := availability{reason: "deployment " + dnsNamespace + "/" + dnsDeployment + " has not been observed", changed: make(chan struct{}, 1)}
	group.Go(func() error { return cluster.WatchDeployment(ctx, dnsNamespace, dnsDeployment, a.say) })
	group.Go(func() error { return r.answers(ctx, d, &a, i) })
	return group.Wait()
}

// answers puts on the board whether DNS is available and answers.
func (r Role) answers(ctx context.Context, d Desired, a *availability, i *item) error {
	server, name := netip.AddrPortFrom(d.Config.DNSAddress, 53), "kubernetes.default.svc."+d.Config.ClusterDomain+"."
	timer := time.NewTimer(0)
	defer timer.Stop()
	for silent := 0; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.changed:
		case <-timer.C:
		}
		if why := a.why(); why != "" {
			i.say(why)
			silent = silences // it has to answer before it is believed again
			timer.Reset(askAgain)
			continue
		}
		switch err := r.Resolve(ctx, server, name); {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			silent = 0
			i.say("")
			timer.Reset(askAgain)
		default:
			if silent++; silent >= silences || !i.risen {
				i.say(err.Error())
			}
			timer.Reset(pause(silent))
		}
	}
}

// pause is short at first: a DNS that becomes ready does so within seconds.
func pause(silent int) time.Duration {
	if silent < 3000 {
		return askSoon
	}
	return time.Second
}

// availability is why the DNS deployment is not available.
type availability struct {
	changed chan struct{} // has a value when the reason is another one

	mu     sync.Mutex // guards reason
	reason string
}

func (a *availability) say(reason string) {
	a.mu.Lock()
	a.reason = reason
	a.mu.Unlock()
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

func (a *availability) why() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reason
}
