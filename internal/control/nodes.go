// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/kube"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// Records are the cluster's records of its machines.
type Records interface {
	// Register writes the records of machines that have none yet. It does not restore removed ones.
	Register(ctx context.Context, nodes []admission.Node) error
	Nodes(ctx context.Context) ([]admission.Node, error)
	// Removed returns the machines that were removed.
	Removed(ctx context.Context) ([]admission.Removed, error)
	// Watch calls changed at the start and after each change, until ctx ends.
	Watch(ctx context.Context, changed func()) error
}

// nodeSet is which nodes belong to the cluster, from the document and, once they were read, the records. A node is dropped only if
// its record existed and is gone: neither an error nor a missing first record counts as a removal. It is safe for concurrent use.
type nodeSet struct {
	desired      Desired
	approve      chan struct{} // has a value when the approver must look again
	changed      chan struct{} // has a value when the result of nodes may have changed
	expel        chan struct{} // has a value when the result of states may have changed
	needsRecords bool          // there are records; until they were read, no machine is trusted

	mu         sync.Mutex // guards the fields below
	records    map[string]admission.Node
	removed    []string // names of removed nodes
	loaded     bool     // the records were read
	registered bool     // every record of the document has been written at some time
}

func newNodeSet(d Desired) *nodeSet {
	s := &nodeSet{
		desired: d, approve: make(chan struct{}, 1), changed: make(chan struct{}, 1), expel: make(chan struct{}, 1), records: map[string]admission.Node{},
	}
	for _, n := range d.Records {
		s.records[n.Name] = n
	}
	return s
}

// load takes over the current records. The document does not bring removed nodes back.
func (s *nodeSet) load(nodes []admission.Node, removed []admission.Removed) {
	s.mu.Lock()
	s.loaded, s.removed = true, nil
	for _, x := range removed {
		s.removed = append(s.removed, x.Name)
	}
	now := map[string]admission.Node{}
	for _, n := range nodes {
		now[n.Name] = n
	}
	if !s.registered {
		for _, n := range s.desired.Records {
			if _, known := now[n.Name]; !known && !slices.Contains(s.removed, n.Name) {
				now[n.Name] = n
			}
		}
	}
	s.records = now
	s.mu.Unlock()
	for _, c := range []chan struct{}{s.approve, s.changed, s.expel} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

func (s *nodeSet) setRegistered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.registered = true
}

// nodes returns all nodes that should be in the cluster, by name. It omits nodes that are being removed, because writing to their
// Node would interfere with the removal.
func (s *nodeSet) nodes() map[string]Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]Node{}
	for _, rec := range s.records {
		if !rec.Removing {
			out[rec.Name] = s.desired.node(rec)
		}
	}
	return out
}

// states returns which nodes are in the cluster, are being removed, and were removed, by the records. It is empty until they were
// read.
func (s *nodeSet) states() kube.NodeStates {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := kube.NodeStates{In: map[string]bool{}, Leaving: map[string]bool{}, Removed: map[string]bool{}}
	if !s.loaded {
		return out
	}
	for name, rec := range s.records {
		if rec.Removing {
			out.Leaving[name] = true
		} else {
			out.In[name] = true
		}
	}
	for _, name := range s.removed {
		if !out.In[name] && !out.Leaving[name] {
			out.Removed[name] = true
		}
	}
	return out
}

// machines returns what the approver may trust. A machine that is being removed has no addresses, so that it gets no certificate.
// Until the records were read, no machine has any: the document may still contain removed ones.
func (s *nodeSet) machines() map[string]kube.Machine {
	out := map[string]kube.Machine{}
	for name, n := range s.nodes() {
		out[name] = kube.Machine{Addresses: n.Addresses}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, rec := range s.records {
		m := out[name]
		m.Key = rec.Key
		if rec.Removing || s.needsRecords && !s.loaded {
			m.Addresses = nil
		}
		out[name] = m
	}
	return out
}

// notJoined reports whether no machine has joined under the name yet.
func (s *nodeSet) notJoined(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	rec, known := s.records[name]
	return known && name != s.desired.Self && rec.JoinedAt.IsZero()
}

// hasRecords reports whether the cluster has records. The first ones are made from the document.
func (r Role) hasRecords(d Desired) bool { return r.Records != nil && len(d.Records) > 0 }

// watchRecords keeps the node set up to date with the records until ctx ends.
func (r Role) watchRecords(ctx context.Context, d Desired, all *nodeSet) error {
	if !r.hasRecords(d) {
		<-ctx.Done()
		return ctx.Err()
	}
	r.Board.Set(reconcile.Status{Ref: itemRecords, Phase: reconcile.Starting, For: wait.For{Who: "kube-apiserver"}})
	return r.persist(ctx, itemRecords, func(ctx context.Context) error {
		records, err := r.Records(config.ControlConf)
		if err != nil {
			return err
		}
		if err := records.Register(ctx, d.Records); err != nil {
			_ = loadRecords(ctx, records, all) // a bad record must not keep other nodes out; the first error says more
			return err
		}
		all.setRegistered()
		ctx, stop := context.WithCancelCause(ctx)
		defer stop(nil)
		err = records.Watch(ctx, func() {
			if err := loadRecords(ctx, records, all); err != nil {
				stop(err) // persist starts again
				return
			}
			r.Board.Set(reconcile.Status{Ref: itemRecords, Phase: reconcile.Ready})
		})
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	})
}

// loadRecords reads the removed machines first: a node that is admitted again in between is in both lists, and counts as admitted.
func loadRecords(ctx context.Context, records Records, all *nodeSet) error {
	removed, err := records.Removed(ctx)
	if err != nil {
		return err
	}
	nodes, err := records.Nodes(ctx)
	if err != nil {
		return err
	}
	all.load(nodes, removed)
	return nil
}

// keepNodes keeps every node of the set, as the set changes, until ctx ends.
func (r Role) keepNodes(ctx context.Context, cluster Controller, all *nodeSet) error {
	kept := map[string]*keptNode{}
	defer func() {
		for _, k := range kept {
			k.stop()
		}
	}()
	for {
		want := all.nodes()
		for name, k := range kept {
			n, wanted := want[name]
			if wanted && k.same(n) {
				continue
			}
			k.stop()
			delete(kept, name)
			if !wanted {
				r.Board.Drop(itemNode(name))
				r.Log.Info("node removed from the control role", "node", name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(want)) {
			if kept[name] != nil {
				continue
			}
			nodeCtx, cancel := context.WithCancel(ctx)
			k := &keptNode{want[name], cancel, make(chan struct{})}
			go func() {
				defer close(k.ended)
				_ = r.keepNode(nodeCtx, cluster, k.node, all) // always the context's error
			}()
			kept[name] = k
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-all.changed:
		}
	}
}

// keptNode is one running keepNode.
type keptNode struct {
	node   Node
	cancel context.CancelFunc
	ended  chan struct{}
}

func (k *keptNode) stop() {
	k.cancel()
	<-k.ended
}

// same ignores the addresses, which only the approver uses.
func (k *keptNode) same(n Node) bool {
	return k.node.PodCIDR == n.PodCIDR && maps.Equal(k.node.Labels, n.Labels) && slices.Equal(k.node.Taints, n.Taints)
}

// keepNode writes the record to the Node as soon as that exists, and keeps the node's item: it is ready while the record is written
// and the kubelet reports the node as ready. The kubelet's reports count only once the kubelet of this run is running.
func (r Role) keepNode(ctx context.Context, cluster Controller, n Node, all *nodeSet) error {
	var mu sync.Mutex
	last, set := "its state is unknown", func(string) {}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return cluster.KeepNode(ctx, n, func(reason string) {
			if reason == kube.Absent(n.Name) && all.notJoined(n.Name) {
				reason = "the machine has not joined"
			}
			mu.Lock()
			defer mu.Unlock()
			last = reason
			set(reason)
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
		set = i.set
		set(last)
		return nil
	})
	return group.Wait()
}

// unitsOf returns the items of this machine that the node needs to be ready. Those of another machine are on that machine's board.
func (d Desired) unitsOf(node string) []string {
	if d.Self == "" || d.Self == node {
		return []string{itemKubelet}
	}
	return nil
}
