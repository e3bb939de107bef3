// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/slipway-project/slipway/api/control/v1"
)

// lateAdmin answers at the agent's socket from the agent's start on; what it passes questions to comes and goes with the join
// service.
type lateAdmin struct {
	controlv1.UnimplementedControlServer
	now *atomic.Pointer[controlv1.ControlServer]
}

func (l lateAdmin) to() (controlv1.ControlServer, error) {
	if s := l.now.Load(); s != nil {
		return *s, nil
	}
	return nil, status.Error(codes.Unavailable, "this machine's control role does not answer: it is no control plane, or is not ready; ask another one, or see slipway status")
}

// through passes a question on.
func through[Q, A any](l lateAdmin, ask func(controlv1.ControlServer) func(context.Context, *Q) (*A, error)) func(context.Context, *Q) (*A, error) {
	return func(ctx context.Context, q *Q) (*A, error) {
		s, err := l.to()
		if err != nil {
			return nil, err
		}
		return ask(s)(ctx, q)
	}
}

func (l lateAdmin) ListNodes(ctx context.Context, q *controlv1.ListNodesRequest) (*controlv1.ListNodesReply, error) {
	return through(l, func(s controlv1.ControlServer) func(context.Context, *controlv1.ListNodesRequest) (*controlv1.ListNodesReply, error) {
		return s.ListNodes
	})(ctx, q)
}

func (l lateAdmin) ApproveNode(ctx context.Context, q *controlv1.ApproveNodeRequest) (*controlv1.ApproveNodeReply, error) {
	return through(l, func(s controlv1.ControlServer) func(context.Context, *controlv1.ApproveNodeRequest) (*controlv1.ApproveNodeReply, error) {
		return s.ApproveNode
	})(ctx, q)
}

func (l lateAdmin) CreateToken(ctx context.Context, q *controlv1.CreateTokenRequest) (*controlv1.CreateTokenReply, error) {
	return through(l, func(s controlv1.ControlServer) func(context.Context, *controlv1.CreateTokenRequest) (*controlv1.CreateTokenReply, error) {
		return s.CreateToken
	})(ctx, q)
}

func (l lateAdmin) Invite(ctx context.Context, q *controlv1.InviteRequest) (*controlv1.InviteReply, error) {
	return through(l, func(s controlv1.ControlServer) func(context.Context, *controlv1.InviteRequest) (*controlv1.InviteReply, error) {
		return s.Invite
	})(ctx, q)
}

func (l lateAdmin) ListTokens(ctx context.Context, q *controlv1.ListTokensRequest) (*controlv1.ListTokensReply, error) {
	return through(l, func(s controlv1.ControlServer) func(context.Context, *controlv1.ListTokensRequest) (*controlv1.ListTokensReply, error) {
		return s.ListTokens
	})(ctx, q)
}

func (l lateAdmin) RevokeToken(ctx context.Context, q *controlv1.RevokeTokenRequest) (*controlv1.RevokeTokenReply, error) {
	return through(l, func(s controlv1.ControlServer) func(context.Context, *controlv1.RevokeTokenRequest) (*controlv1.RevokeTokenReply, error) {
		return s.RevokeToken
	})(ctx, q)
}

func (l lateAdmin) DrainNode(q *controlv1.DrainNodeRequest, stream grpc.ServerStreamingServer[controlv1.Progress]) error {
	s, err := l.to()
	if err != nil {
		return err
	}
	return s.DrainNode(q, stream)
}

func (l lateAdmin) RemoveNode(q *controlv1.RemoveNodeRequest, stream grpc.ServerStreamingServer[controlv1.Progress]) error {
	s, err := l.to()
	if err != nil {
		return err
	}
	return s.RemoveNode(q, stream)
}
