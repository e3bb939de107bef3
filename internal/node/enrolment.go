// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/core/pin"
)

// Enrolment is the machine's way into a cluster and out of it.
type Enrolment interface {
	State() Enrolled
	// Join tells a free machine which cluster to join; it returns when that is kept.
	Join(ctx context.Context, t JoinTarget) error
	// Reset takes the machine out of its cluster.
	Reset(ctx context.Context, cluster string, lost bool) error
	// Announce sets the enrolment's items on the board after it was reset.
	Announce()
	// WaitForAddress delays the plan while the machine may be a copy of another one. It returns early when ctx ends.
	WaitForAddress(ctx context.Context)
}

// Enrolled is where a machine stands.
type Enrolled struct{ Phase, Cluster, Node string }

// JoinTarget says which cluster to join.
type JoinTarget struct {
	Endpoints []string // host:port
	Pin       pin.Pin  // of the join CA
	Token     string   // secret; empty: the cluster knows the machine's key
	Node      string   // optional
}

// Join translates between the wire and the enrolment.
func (s *service) Join(ctx context.Context, r *nodev1.JoinRequest) (*nodev1.JoinReply, error) {
	e := s.agent.enrolment
	if e == nil {
		return nil, status.Error(codes.Unimplemented, "this agent joins no cluster")
	}
	err := e.Join(ctx, JoinTarget{Endpoints: r.GetEndpoints(), Pin: pin.Pin(r.GetPin()), Token: r.GetToken(), Node: r.GetNode()})
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &nodev1.JoinReply{}, nil
}

// Reset translates between the wire and the enrolment.
func (s *service) Reset(ctx context.Context, r *nodev1.ResetRequest) (*nodev1.ResetReply, error) {
	e := s.agent.enrolment
	if e == nil {
		return nil, status.Error(codes.Unimplemented, "this agent resets nothing")
	}
	if err := e.Reset(context.WithoutCancel(ctx), r.GetCluster(), r.GetLost()); err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &nodev1.ResetReply{}, nil
}
