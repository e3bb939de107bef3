// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// UnitStatus is a supervised process as status shows it.
type UnitStatus struct {
	Name     string
	PID      int
	Since    time.Time
	Ready    bool
	Restarts int
	LastExit string
	Waiting  string
	Oneshot  bool
}

const maxPlan = 16 << 20 // bytes of a plan on the wire

// lastWords is the time for answers under way when the agent ends; a Watch never ends by itself.
const lastWords = 100 * time.Millisecond

// serve answers on the unix socket until ctx ends. The socket is the authentication: 0600 in a folder of root's.
func (a *Agent) serve(ctx context.Context) error {
	if a.cfg.Socket == "" {
		<-ctx.Done()
		return nil
	}
	if err := os.Remove(a.cfg.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the old socket: %w", err)
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "unix", a.cfg.Socket)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if err := os.Chmod(a.cfg.Socket, 0o600); err != nil {
		return fmt.Errorf("protect the socket: %w", err)
	}
	s := grpc.NewServer(grpc.MaxRecvMsgSize(maxPlan))
	nodev1.RegisterNodeServer(s, &service{agent: a})
	if a.cfg.Register != nil {
		a.cfg.Register(s)
	}
	go func() {
		<-ctx.Done()
		stop := time.AfterFunc(lastWords, s.Stop)
		s.GracefulStop() // who waits for the answer to a reset gets it
		stop.Stop()
	}()
	if err := s.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// service translates between the wire and the agent, once.
type service struct {
	nodev1.UnimplementedNodeServer
	agent *Agent
}

func (s *service) Facts(context.Context, *nodev1.FactsRequest) (*nodev1.FactsReply, error) {
	reply := &nodev1.FactsReply{Version: s.agent.cfg.Version, Facts: s.agent.cfg.Facts.Encode(), Key: string(s.agent.cfg.Key)}
	if e := s.agent.enrolment; e != nil {
		now := e.State()
		reply.Lock, reply.Cluster, reply.Node = now.Phase, now.Cluster, now.Node
	}
	return reply, nil
}

func (s *service) Apply(ctx context.Context, r *nodev1.ApplyRequest) (*nodev1.ApplyReply, error) {
	p, err := plan.Decode(r.GetPlan())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if e := s.agent.enrolment; e != nil && e.State().Phase != "committed" {
		return nil, status.Error(codes.FailedPrecondition, "this machine belongs to no cluster yet: it takes a plan only from init or join")
	}
	changed, err := s.agent.Keep(ctx, p, r.GetControl())
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &nodev1.ApplyReply{Changed: changed}, nil
}

func (s *service) Watch(_ *nodev1.WatchRequest, stream grpc.ServerStreamingServer[nodev1.Event]) error {
	changes := s.agent.board.Subscribe()
	defer changes.End()
	all, _ := s.agent.board.All()
	for _, item := range all {
		if err := stream.Send(s.event(item)); err != nil {
			return err
		}
	}
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case <-changes.C:
			for _, item := range changes.Take() {
				if err := stream.Send(s.event(item)); err != nil {
					return err
				}
			}
		}
	}
}

func (s *service) Status(context.Context, *nodev1.StatusRequest) (*nodev1.StatusReply, error) {
	now := s.agent.current()
	all, steps := s.agent.board.All()
	reply := &nodev1.StatusReply{
		Cluster: now.Want.Cluster, Node: now.Want.Node, Release: now.Want.Release, Steps: int32(steps), Converged: s.agent.up(all),
	}
	for _, item := range all {
		reply.Items = append(reply.Items, wireItem(item))
	}
	for _, u := range s.agent.cfg.Host.Units() {
		reply.Units = append(reply.Units, &nodev1.Unit{
			Name: u.Name, Pid: int64(u.PID), SinceUnixNano: unixNano(u.Since), Ready: u.Ready, Restarts: int32(u.Restarts),
			LastExit: u.LastExit, WaitingFor: u.Waiting, Oneshot: u.Oneshot,
		})
	}
	return reply, nil
}

func (s *service) Trace(context.Context, *nodev1.TraceRequest) (*nodev1.TraceReply, error) {
	spans, err := s.agent.trace()
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &nodev1.TraceReply{Spans: spans}, nil
}

func (s *service) event(item reconcile.Status) *nodev1.Event {
	all, steps := s.agent.board.All()
	return &nodev1.Event{Item: wireItem(item), Converged: s.agent.up(all), Steps: int32(steps)}
}

func wireItem(i reconcile.Status) *nodev1.Item {
	w := &nodev1.Item{
		Ref: i.Ref, Phase: string(i.Phase), SinceUnixNano: unixNano(i.Since), WaitingFor: i.What, Provider: i.Who, Error: i.Error,
	}
	if i.Step != nil {
		w.Verb, w.Why = string(i.Step.Verb), i.Step.Why
	}
	return w
}

// unixNano is 0 for a time that is not known.
func unixNano(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}
