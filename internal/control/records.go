// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"slices"
	"sync"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/kube"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// Records are the cluster's records of its machines.
type Records interface {
	// Register writes down machines that have no record yet. What was removed stays removed.
	Register(ctx context.Context, nodes []admission.Node) error
	Nodes(ctx context.Context) ([]admission.Node, error)
	// Removed are the machines that were taken out.
	Removed(ctx context.Context) ([]admission.Removed, error)
	// Watch calls changed at the start and after each change, until ctx ends.
	Watch(ctx context.Context, changed func()) error
}

// roll is who belongs to the cluster: what the document says, and over it what the records say. A record that is gone takes its
// node away only when it was there to be seen: no answer and no record yet are no removal.
type roll struct {
	desired Desired
	open    chan struct{} // has a value when the approver has to look again
	members chan struct{} // has a value when the nodes to be kept may be others
	leavers chan struct{} // has a value when others may have been removed
	awaits  bool          // there are records: until they are read, nobody is believed to be in the cluster still

	mu         sync.Mutex // guards the fields below
	records    map[string]admission.Node
	removed    []string // names of nodes that were removed
	learned    bool     // the records have been read
	registered bool     // every record of the document was written down at some time
}

func newRoll(d Desired) *roll {
	r := &roll{
		desired: d, open: make(chan struct{}, 1), members: make(chan struct{}, 1), leavers: make(chan struct{}, 1), records: map[string]admission.Node{},
	}
	for _, n := range d.Records {
		r.records[n.Name] = n
	}
	return r
}

// learn takes the records as they are now. What was removed is not brought back by the document.
func (r *roll) learn(nodes []admission.Node, removed []admission.Removed) {
	r.mu.Lock()
	r.learned, r.removed = true, nil
	for _, x := range removed {
		r.removed = append(r.removed, x.Name)
	}
	now := map[string]admission.Node{}
	for _, n := range nodes {
		now[n.Name] = n
	}
	if !r.registered {
		for _, n := range r.desired.Records {
			if _, known := now[n.Name]; !known && !slices.Contains(r.removed, n.Name) {
				now[n.Name] = n
			}
		}
	}
	r.records = now
	r.mu.Unlock()
	for _, c := range []chan struct{}{r.open, r.members, r.leavers} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

func (r *roll) setRegistered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.registered = true
}

// nodes are all that should be in the cluster, by name. One that is being removed is left alone: what is written to its Node would
// bring life into it.
func (r *roll) nodes() map[string]Node {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]Node{}
	for _, rec := range r.records {
		if !rec.Removing {
			out[rec.Name] = r.desired.node(rec)
		}
	}
	return out
}

// standing says which nodes are in the cluster, which are on their way out, and which were removed. What the document alone says
// is no evidence.
func (r *roll) standing() kube.NodeStates {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := kube.NodeStates{In: map[string]bool{}, Leaving: map[string]bool{}, Removed: map[string]bool{}}
	if !r.learned {
		return out
	}
	for name, rec := range r.records {
		if rec.Removing {
			out.Leaving[name] = true
		} else {
			out.In[name] = true
		}
	}
	for _, name := range r.removed {
		if !out.In[name] && !out.Leaving[name] {
			out.Removed[name] = true
		}
	}
	return out
}

// machines is what the approver believes. A machine that is being removed gets nothing any more, and nobody gets anything before
// the records were read: the document may still have machines that were removed.
func (r *roll) machines() map[string]kube.Machine {
	out := map[string]kube.Machine{}
	for name, n := range r.nodes() {
		out[name] = kube.Machine{Addresses: n.Addresses}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, rec := range r.records {
		m := out[name]
		m.Key = rec.Key
		if rec.Removing || r.awaits && !r.learned {
			m.Addresses = nil
		}
		out[name] = m
	}
	return out
}

// awaited tells that no machine has come for the name yet.
func (r *roll) awaited(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, known := r.records[name]
	return known && name != r.desired.Self && rec.JoinedAt.IsZero()
}

// hasRecords tells whether there are records at all: the first are made from the document.
func (r Role) hasRecords(d Desired) bool { return r.Records != nil && len(d.Records) > 0 }

// follows keeps the roll up with the records until ctx ends.
func (r Role) follows(ctx context.Context, d Desired, all *roll) error {
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
		if err := records.Register(ctx, d.Records); err != nil { // what is wrong with one node keeps no other out
			_ = read(ctx, records, all) // the error before it says more
			return err
		}
		all.setRegistered()
		return r.learns(ctx, records, all)
	})
}

// learns lists after each change. What cannot be listed is as it was.
func (r Role) learns(ctx context.Context, records Records, all *roll) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	err := records.Watch(ctx, func() {
		if err := read(ctx, records, all); err != nil {
			stop(err) // and begin anew, later
			return
		}
		r.Board.Set(reconcile.Status{Ref: itemRecords, Phase: reconcile.Ready})
	})
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// read takes the removed first: a node that comes back in between is in both lists, and so in the cluster.
func read(ctx context.Context, records Records, all *roll) error {
	removed, err := records.Removed(ctx)
	if err != nil {
		return err
	}
	nodes, err := records.Nodes(ctx)
	if err != nil {
		return err
	}
	all.learn(nodes, removed)
	return nil
}
