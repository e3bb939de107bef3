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
	drainLimit = 5 * time.Minute // unless the request has a timeout
	leaveLimit = 2 * time.Minute // for etcd, where another change may have to end first
	undoLimit  = 10 * time.Second
	warnLimit  = time.Second // for a warning that is only useful before the drain
)

func limit(seconds int64) time.Duration {
	if seconds <= 0 {
		return drainLimit
	}
	return min(time.Duration(seconds)*time.Second, 24*time.Hour)
}

// progress returns a function that sends lines to the client. If the client is gone, the stream's context ends the work.
func progress(stream grpc.ServerStreamingServer[controlv1.Progress]) func(string) {
	return func(text string) { _ = stream.Send(&controlv1.Progress{Text: text}) }
}

// DrainNode drains a node, or uncordons it.
func (s *server) DrainNode(r *controlv1.DrainNodeRequest, stream grpc.ServerStreamingServer[controlv1.Progress]) error {
	if r.GetUndo() {
		return coded(s.Kube.Uncordon(stream.Context(), r.GetName()))
	}
	s.warnIfNotReady(stream.Context(), r.GetName(), limit(r.GetTimeoutSeconds()), "if the machine is gone for good, run slipway node remove "+r.GetName()+" --lost", progress(stream))
	return coded(s.Kube.Drain(stream.Context(), r.GetName(), limit(r.GetTimeoutSeconds()), progress(stream)))
}

// RemoveNode removes a node for good:
//
//	allowed? ──► record marked ──► pods evicted ──► left etcd ──► Node deleted ──► record deleted
//	  │ no            │                                │ refused
//	  ▼               ▼                                ▼
//	nothing done   the machine cannot               the mark is removed
//	               join any more
//
// If it is interrupted, the same request continues: it finds what is already done.
func (s *server) RemoveNode(r *controlv1.RemoveNodeRequest, stream grpc.ServerStreamingServer[controlv1.Progress]) error {
	say := progress(stream)
	var try removal
	err := retryStarting(stream.Context(), say, func() error {
		err := s.remove(stream.Context(), r, &try, say)
		if try.deleting && status.Code(err) == codes.NotFound {
			return nil // it was deleted, but the answer was lost
		}
		return err
	})
	if err != nil && status.Code(coded(err)) != codes.Canceled {
		s.Log.Warn("node not removed", "node", r.GetName(), "why", err)
	}
	return coded(err)
}

// removal is what a request keeps between its tries.
type removal struct {
	marked   bool // this request has marked the record
	deleting bool // it has begun to delete the Node
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
		s.warnIfNotReady(ctx, name, limit(r.GetTimeoutSeconds()), "to remove the node without waiting for them, run slipway node remove "+name+" --lost", say)
		say("draining it")
		err := s.Kube.Drain(ctx, name, limit(r.GetTimeoutSeconds()), say)
		if err != nil && !errors.Is(err, kube.ErrNoNode) {
			return fmt.Errorf("%w: run the same command again to continue, or with --lost to not wait for pods", err)
		}
	}
	if l.member {
		say("removing it from etcd")
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
		say("the machine has the keys of all CAs: if you cannot trust it, you cannot trust this cluster")
	}
	say("node " + name + " removed")
	return nil
}

// warnIfNotReady says that the drain of a node whose kubelet does not answer waits until its time limit.
func (s *server) warnIfNotReady(ctx context.Context, name string, limit time.Duration, remedy string, say func(string)) {
	ctx, cancel := context.WithTimeout(ctx, warnLimit)
	defer cancel()
	all, err := s.Kube.ListNodes(ctx)
	if err != nil {
		return // the drain reports it
	}
	i := slices.IndexFunc(all, func(n kube.NodeInfo) bool { return n.Name == name })
	if i < 0 || all[i].Ready {
		return
	}
	say(fmt.Sprintf("%s is not ready (%s): while its kubelet does not answer, its pods do not end; waiting for them for up to %s; %s", name, all[i].Reason, limit, remedy))
}

// leaver is a node that is being removed.
type leaver struct {
	record   admission.Node
	recorded bool // it has a record; otherwise only Kubernetes knows it
	member   bool // it is a control plane, and may be a member of etcd
	marked   bool // by this request
}

// mayRemove returns the node, or why it cannot be removed. It changes nothing.
func (s *server) mayRemove(ctx context.Context, name string) (l leaver, err error) {
	d, ok := s.Desired()
	if !ok {
		return l, status.Error(codes.Unavailable, "this control plane has no control document yet: try again once its agent has started")
	}
	records, err := s.Nodes.Nodes(ctx)
	if err != nil {
		return l, fmt.Errorf("read the nodes' records: %w", err)
	}
	i := slices.IndexFunc(records, func(n admission.Node) bool { return n.Name == name })
	if i < 0 {
		return l, s.checkKubeNode(ctx, name)
	}
	l.record, l.recorded = records[i], true
	if _, known := d.IsControlPlane(l.record); !known {
		return l, status.Errorf(codes.FailedPrecondition, "node %s is in pool %q, which is not in the spec, so it is unknown whether the node is a control plane: add the pool to the spec first", name, l.record.Pool)
	}
	if l.member = isControlPlane(d, l.record); !l.member {
		return l, nil
	}
	others := slices.ContainsFunc(records, func(n admission.Node) bool { return n.Name != name && !n.Removing && isControlPlane(d, n) })
	switch {
	case !others:
		return l, status.Errorf(codes.FailedPrecondition, "node %s is the last control plane: a cluster needs one", name)
	case name == d.Self:
		return l, status.Errorf(codes.Unavailable, "node %s cannot remove itself: another control plane does that", name)
	}
	return l, s.Members.MayLeave(ctx, name)
}

// checkKubeNode returns nil if Kubernetes has the node, for which there is no record.
func (s *server) checkKubeNode(ctx context.Context, name string) error {
	nodes, err := s.Kube.ListNodes(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(nodes, func(n kube.NodeInfo) bool { return n.Name == name }) {
		return status.Errorf(codes.NotFound, "no node %s", name)
	}
	return nil
}

// mark sets Removing in the record: from then on the machine cannot join.
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

// leave removes the node from etcd. If etcd refuses by now, leave undoes the mark and the cordon of this request.
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
		say("etcd needs it for a quorum: the node stays and is schedulable again")
	}
	return errors.Join(err, undone)
}
