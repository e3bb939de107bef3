// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/slipway-project/slipway/api/control/v1"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/pin"
)

// CreateToken makes a token. The invitation comes first: a token that nobody can use must not lie about.
func (s *server) CreateToken(ctx context.Context, r *controlv1.CreateTokenRequest) (*controlv1.CreateTokenReply, error) {
	if r.GetTtlSeconds() < 0 {
		return nil, status.Errorf(codes.InvalidArgument, "a token cannot live for %d seconds", r.GetTtlSeconds())
	}
	var inv Invitation
	err := patiently(ctx, nil, func() (err error) {
		inv, err = s.Config.Invite(ctx)
		return err
	})
	if err != nil {
		return nil, coded(err)
	}
	spec := registry.TokenSpec{Pool: r.GetPool(), Node: r.GetNode(), Key: pin.Pin(r.GetKey()), TTL: time.Duration(r.GetTtlSeconds()) * time.Second}
	var t admission.Token
	var text string
	err = patiently(ctx, nil, func() (err error) {
		t, text, err = s.Tokens.CreateToken(ctx, spec)
		return err
	})
	if err != nil {
		return nil, coded(err)
	}
	s.Log.Info("token created", "id", t.ID, "pool", t.Pool, "node", t.Node, "key", t.Key, "expires", t.Expires)
	return &controlv1.CreateTokenReply{
		Id: t.ID, Token: text, Pin: string(inv.Pin), Cluster: inv.Cluster, Endpoints: inv.Endpoints, ExpiresUnix: t.Expires.Unix(),
	}, nil
}

// Invite tells what a machine has to know beside its right to join. None of it is secret.
func (s *server) Invite(ctx context.Context, _ *controlv1.InviteRequest) (*controlv1.InviteReply, error) {
	var inv Invitation
	err := patiently(ctx, nil, func() (err error) {
		inv, err = s.Config.Invite(ctx)
		return err
	})
	if err != nil {
		return nil, coded(err)
	}
	return &controlv1.InviteReply{Pin: string(inv.Pin), Cluster: inv.Cluster, Endpoints: inv.Endpoints, Stores: inv.Stores, Program: inv.Program}, nil
}

// ListTokens tells of tokens without their secrets.
func (s *server) ListTokens(ctx context.Context, _ *controlv1.ListTokensRequest) (*controlv1.ListTokensReply, error) {
	all, err := s.Tokens.Tokens(ctx)
	if err != nil {
		return nil, coded(err)
	}
	out := &controlv1.ListTokensReply{}
	for _, t := range all {
		out.Tokens = append(out.Tokens, &controlv1.Token{Id: t.ID, Pool: t.Pool, Node: t.Node, ExpiresUnix: t.Expires.Unix(), UsedBy: string(t.UsedBy)})
	}
	return out, nil
}

// RevokeToken ends a token that nobody has used.
func (s *server) RevokeToken(ctx context.Context, r *controlv1.RevokeTokenRequest) (*controlv1.RevokeTokenReply, error) {
	err := s.Tokens.RevokeToken(ctx, r.GetId())
	if errors.Is(err, registry.ErrNotFound) {
		return nil, status.Errorf(codes.NotFound, "there is no token %.80q: it has expired, or was revoked before", r.GetId())
	}
	if err != nil {
		return nil, coded(err)
	}
	s.Log.Info("token revoked", "id", r.GetId())
	return &controlv1.RevokeTokenReply{}, nil
}

// ApproveNode lets the machine in that waits for the name.
func (s *server) ApproveNode(ctx context.Context, r *controlv1.ApproveNodeRequest) (*controlv1.ApproveNodeReply, error) {
	key, err := s.Nodes.Approve(ctx, r.GetName())
	if err != nil {
		return nil, coded(err)
	}
	s.Log.Info("machine approved", "node", r.GetName(), "key", key)
	return &controlv1.ApproveNodeReply{Key: string(key)}, nil
}
