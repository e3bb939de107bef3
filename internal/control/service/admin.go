// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/slipway-project/slipway/api/control/v1"
)

// Admin is the administration service for the agent's socket. It is available from the agent's start; while the service is not
// running, every request fails with codes.Unavailable.
func (s *Service) Admin() controlv1.ControlServer { return adminProxy{now: &s.admin} }

// adminProxy passes requests on to the administration service of the running service.
type adminProxy struct {
	controlv1.UnimplementedControlServer
	now *atomic.Pointer[controlv1.ControlServer]
}

func (a adminProxy) to() (controlv1.ControlServer, error) {
	if s := a.now.Load(); s != nil {
		return *s, nil
	}
	return nil, status.Error(codes.Unavailable, "this machine's control role is not running: it is not a control plane, or is not ready; ask another one, or see slipway status")
}

// forward passes a request on.
func forward[Q, A any](a adminProxy, method func(controlv1.ControlServer) func(context.Context, *Q) (*A, error)) func(context.Context, *Q) (*A, error) {
	return func(ctx context.Context, q *Q) (*A, error) {
		s, err := a.to()
		if err != nil {
			return nil, err
		}
		return method(s)(ctx, q)
	}
}

func (a adminProxy) ListNodes(ctx context.Context, q *controlv1.ListNodesRequest) (*controlv1.ListNodesReply, error) {
	return forward(a, func(s controlv1.ControlServer) func(context.Context, *controlv1.ListNodesRequest) (*controlv1.ListNodesReply, error) {
		return s.ListNodes
	})(ctx, q)
}

func (a adminProxy) ApproveNode(ctx context.Context, q *controlv1.ApproveNodeRequest) (*controlv1.ApproveNodeReply, error) {
	return forward(a, func(s controlv1.ControlServer) func(context.Context, *controlv1.ApproveNodeRequest) (*controlv1.ApproveNodeReply, error) {
		return s.ApproveNode
	})(ctx, q)
}

func (a adminProxy) CreateToken(ctx context.Context, q *controlv1.CreateTokenRequest) (*controlv1.CreateTokenReply, error) {
	return forward(a, func(s controlv1.ControlServer) func(context.Context, *controlv1.CreateTokenRequest) (*controlv1.CreateTokenReply, error) {
		return s.CreateToken
	})(ctx, q)
}

func (a adminProxy) Invite(ctx context.Context, q *controlv1.InviteRequest) (*controlv1.InviteReply, error) {
	return forward(a, func(s controlv1.ControlServer) func(context.Context, *controlv1.InviteRequest) (*controlv1.InviteReply, error) {
		return s.Invite
	})(ctx, q)
}

func (a adminProxy) ListTokens(ctx context.Context, q *controlv1.ListTokensRequest) (*controlv1.ListTokensReply, error) {
	return forward(a, func(s controlv1.ControlServer) func(context.Context, *controlv1.ListTokensRequest) (*controlv1.ListTokensReply, error) {
		return s.ListTokens
	})(ctx, q)
}

func (a adminProxy) RevokeToken(ctx context.Context, q *controlv1.RevokeTokenRequest) (*controlv1.RevokeTokenReply, error) {
	return forward(a, func(s controlv1.ControlServer) func(context.Context, *controlv1.RevokeTokenRequest) (*controlv1.RevokeTokenReply, error) {
		return s.RevokeToken
	})(ctx, q)
}

func (a adminProxy) DrainNode(q *controlv1.DrainNodeRequest, stream grpc.ServerStreamingServer[controlv1.Progress]) error {
	s, err := a.to()
	if err != nil {
		return err
	}
	return s.DrainNode(q, stream)
}

func (a adminProxy) RemoveNode(q *controlv1.RemoveNodeRequest, stream grpc.ServerStreamingServer[controlv1.Progress]) error {
	s, err := a.to()
	if err != nil {
		return err
	}
	return s.RemoveNode(q, stream)
}
