// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/slipway-project/slipway/api/control/v1"
	"github.com/slipway-project/slipway/internal/control/members"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/kube"
)

const (
	drainLimit = 5 * time.Minute // unless the operator says another
	leaveLimit = 2 * time.Minute // for etcd: another change may have to end first
	undoLimit  = 10 * time.Second

	silentLimit = time.Second // for a word that is good for nothing later
)

func limit(seconds int64) time.Duration {
	if seconds <= 0 {
		return drainLimit
	}
	return min(time.Duration(seconds)*time.Second, 24*time.Hour)
}

// teller passes lines on. That nobody listens any more ends the stream's context, which ends the work.
func teller(stream grpc.ServerStreamingServer[controlv1.Progress]) func(string) {
	return func(text string) { _ = stream.Send(&controlv1.Progress{Text: text}) }
}

// DrainNode moves the pods away, or lets them come again.
func (s *server) DrainNode(r *controlv1.DrainNodeRequest, stream grpc.ServerStreamingServer[controlv1.Progress]) error {
	if r.GetUndo() {
		return coded(s.Kube.Uncordon(stream.Context(), r.GetName()))
	}
	s.sayIfSilent(stream.Context(), r.GetName(), limit(r.GetTimeoutSeconds()), "if the machine is gone for good, slipway node remove "+r.GetName()+" --lost takes it out", teller(stream))
	return coded(s.Kube.Drain(stream.Context(), r.GetName(), limit(r.GetTimeoutSeconds()), teller(stream)))
}

// RemoveNode takes a node out for good:
//
//	may it? ──► record: removing ──► pods away ──► out of etcd ──► Node deleted ──► record deleted
//	  │no             │ from here no machine           │no
//	  ▼               │ gets in by its key             ▼
//	nothing is done   ▼                             the mark is taken back
//	               cut anywhere: the same command goes on, for what is done is found done
func (s *server) RemoveNode(r *controlv1.RemoveNodeRequest, stream grpc.ServerStreamingServer[controlv1.Progress]) error {
	say := teller(stream)
	var try removal
	err := patiently(stream.Context(), say, func() error {
		err := s.remove(stream.Context(), r, &try, say)
		if try.deleting && status.Code(err) == codes.NotFound {
			return nil // the answer to its deletion was lost
		}
		return err
	})
	if err != nil && status.Code(coded(err)) != codes.Canceled {
		s.Log.Warn("node is not removed", "node", r.GetName(), "why", err)
	}
	return coded(err)
}

// removal is what one command remembers from try to try.
type removal struct {
	marked   bool // it was this command that has marked the record
	deleting bool // it has begun to delete
}

// remove tries once.
func (s *server) remove(ctx context.Context, r *controlv1.RemoveNodeRequest, try *removal, say func(string)) error {
	name := r.GetName()
	l, err := s.mayRemove(ctx, name)
	if err != nil {
		return err
	}
	l.marked = try.marked
	if err := s.mark(ctx, &l); err != nil {
		return err
	}
	try.marked = l.marked
	if !r.GetLost() {
		s.sayIfSilent(ctx, name, limit(r.GetTimeoutSeconds()), "slipway node remove "+name+" --lost takes it out without waiting for them", say)
		say("moving its pods away")
		err := s.Kube.Drain(ctx, name, limit(r.GetTimeoutSeconds()), say)
		if err != nil && !errors.Is(err, kube.ErrNoNode) {
			return fmt.Errorf("%w: the same command goes on from here; with --lost it does not wait for pods", err)
		}
	}
	if l.member {
		say("taking it out of etcd")
		if err := s.leave(ctx, l, say); err != nil {
			return err
		}
	}
	say("deleting its Node")
	try.deleting = true
	if err := s.Kube.DeleteNode(ctx, name); err != nil {
		return err
	}
	if l.recorded {
		if err := s.Nodes.DeleteNode(ctx, name); err != nil && !errors.Is(err, registry.ErrNotFound) {
			return err
		}
	}
	s.Log.Info("node removed", "node", name, "key", l.record.Key, "lost", r.GetLost())
	if l.member {
		say("it has held the keys of all CAs: if the machine is not to be trusted, this cluster is not, either")
	}
	say(name + " is removed")
	return nil
}

// sayIfSilent tells at once what a drain would be found out to wait for only at its end: who is to stop the pods is not there.
func (s *server) sayIfSilent(ctx context.Context, name string, limit time.Duration, remedy string, say func(string)) {
	ctx, cancel := context.WithTimeout(ctx, silentLimit)
	defer cancel()
	all, err := s.Kube.ListNodes(ctx)
	if err != nil {
		return // the drain says so
	}
	i := slices.IndexFunc(all, func(n kube.NodeInfo) bool { return n.Name == name })
	if i < 0 || all[i].Ready {
		return
	}
	say(fmt.Sprintf("%s is not ready (%s): while its kubelet does not answer, its pods do not end, and this waits for them for up to %s; %s", name, all[i].Reason, limit, remedy))
}

// leaver is a node that is to leave.
type leaver struct {
	record   admission.Node
	recorded bool // it has a record; otherwise it is a Node and nothing else
	member   bool // it is a control plane, and may be in etcd
	marked   bool // by this very command
}

// mayRemove looks, and changes nothing.
func (s *server) mayRemove(ctx context.Context, name string) (l leaver, err error) {
	d, err := s.desired()
	if err != nil {
		return l, err
	}
	records, err := s.Nodes.Nodes(ctx)
	if err != nil {
		return l, fmt.Errorf("read the nodes' records: %w", err)
	}
	i := slices.IndexFunc(records, func(n admission.Node) bool { return n.Name == name })
	if i < 0 {
		return l, s.onlyNode(ctx, name)
	}
	l.record, l.recorded = records[i], true
	if _, known := d.IsControlPlane(l.record); !known {
		return l, status.Errorf(codes.FailedPrecondition, "node %s is in the pool %q, which the spec does not have: nobody knows whether it is a control plane. Put the pool back into the spec first", name, l.record.Pool)
	}
	if l.member = isControlPlane(d, l.record); !l.member {
		return l, nil
	}
	others := slices.ContainsFunc(records, func(n admission.Node) bool { return n.Name != name && !n.Removing && isControlPlane(d, n) })
	switch {
	case !others:
		return l, status.Errorf(codes.FailedPrecondition, "node %s is the last control plane: without it there is no cluster", name)
	case name == d.Self:
		return l, status.Errorf(codes.Unavailable, "node %s cannot take itself out: another control plane does that", name)
	}
	return l, s.Members.MayLeave(ctx, name)
}

// onlyNode tells whether Kubernetes has a node of which no record is left.
func (s *server) onlyNode(ctx context.Context, name string) error {
	nodes, err := s.Kube.ListNodes(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(nodes, func(n kube.NodeInfo) bool { return n.Name == name }) {
		return status.Errorf(codes.NotFound, "there is no node %s", name)
	}
	return nil
}

// mark makes the record one that lets no machine in.
func (s *server) mark(ctx context.Context, l *leaver) error {
	if !l.recorded {
		return nil
	}
	_, err := s.Nodes.UpdateNode(ctx, l.record.Name, func(n *admission.Node) error {
		l.marked, n.Removing = l.marked || !n.Removing, true
		return nil
	})
	return err
}

// leave takes the node out of etcd. When etcd has become unable to do without it, all is as before.
func (s *server) leave(ctx context.Context, l leaver, say func(string)) error {
	limited, cancel := context.WithTimeout(ctx, leaveLimit)
	defer cancel()
	err := s.Members.Leave(limited, l.record.Name)
	if !errors.Is(err, members.ErrRefused) || !l.marked {
		return err
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	_, undone := s.Nodes.UpdateNode(undo, l.record.Name, func(n *admission.Node) error {
		n.Removing = false
		return nil
	})
	if undone = errors.Join(undone, s.Kube.Uncordon(undo, l.record.Name)); undone == nil {
		say("etcd cannot do without it: it stays, and pods may come again")
	}
	return errors.Join(err, undone)
}
