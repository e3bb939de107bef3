// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	controlv1 "github.com/slipway-project/slipway/api/control/v1"
	"github.com/slipway-project/slipway/internal/control/registry"
)

func TestTokens(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := w.server()
	made, err := s.CreateToken(t.Context(), &controlv1.CreateTokenRequest{Pool: "worker", TtlSeconds: 60})
	want := &controlv1.CreateTokenReply{
		Id: "id1", Token: "slipway.id1.secret", Pin: "sha256:ca", Cluster: "id of it", Endpoints: []string{"192.0.2.1:9440"}, ExpiresUnix: 1060,
	}
	if diff := cmp.Diff(want, made, protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("%v, made (-want +got):\n%s", err, diff)
	}
	list, err := s.ListTokens(t.Context(), nil)
	if err != nil || len(list.GetTokens()) != 1 || strings.Contains(list.String(), "never told") || list.GetTokens()[0].GetUsedBy() != "sha256:k" {
		t.Errorf("list: %v %v", list, err)
	}
	if _, err := s.RevokeToken(t.Context(), &controlv1.RevokeTokenRequest{Id: "id1"}); err != nil {
		t.Error(err)
	}
	w.fail["revoke x"] = fmt.Errorf("revoke token: %w", registry.ErrNotFound)
	if _, err := s.RevokeToken(t.Context(), &controlv1.RevokeTokenRequest{Id: "x"}); status.Code(err) != codes.NotFound {
		t.Errorf("revoke of an unknown token: %v", err)
	}
	w.calls, w.fail["invite"] = nil, errors.New("no join CA yet")
	if _, err := s.CreateToken(t.Context(), &controlv1.CreateTokenRequest{Pool: "worker"}); err == nil || len(w.calls) != 0 {
		t.Errorf("got error %v and calls %v, want no unusable token", err, w.calls)
	}
	if _, err := s.CreateToken(t.Context(), &controlv1.CreateTokenRequest{TtlSeconds: -1}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("negative lifetime: got error %v", err)
	}
	r, err := s.ApproveNode(t.Context(), &controlv1.ApproveNodeRequest{Name: "w1"})
	if err != nil || r.GetKey() != "sha256:new" {
		t.Errorf("approve: %v %v", r, err)
	}
}

func TestInvite(t *testing.T) {
	t.Parallel()
	w := newWorld()
	r, err := w.server().Invite(t.Context(), nil)
	want := &controlv1.InviteReply{Pin: "sha256:ca", Cluster: "id of it", Endpoints: []string{"192.0.2.1:9440"}, Stores: []string{"192.0.2.1:9442"}, Program: "sha256:program"}
	if diff := cmp.Diff(want, r, protocmp.Transform()); diff != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	w.fail["invite"] = errors.New("no roster yet")
	if _, err := w.server().Invite(t.Context(), nil); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("without a roster: %v", err)
	}
}
