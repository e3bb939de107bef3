// SPDX-License-Identifier: Apache-2.0

package rollout_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/slipway-project/slipway/internal/control/lease"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/control/rollout"
	"github.com/slipway-project/slipway/internal/core/membership"
)

func TestReplicas(t *testing.T) {
	t.Parallel()
	down := errors.New("connection refused")
	for name, c := range map[string]struct {
		first, second error
		wantErr       error
		wantSecond    int // times the second server was asked
	}{
		"the first answers":             {},
		"the first is down":             {first: down, wantSecond: 1},
		"the first reports a conflict":  {first: registry.ErrConflict, wantErr: registry.ErrConflict},
		"the first reports not found":   {first: registry.ErrNotFound, wantErr: registry.ErrNotFound},
		"all are down":                  {first: down, second: down, wantErr: down, wantSecond: 1},
		"the second reports a conflict": {first: down, second: registry.ErrConflict, wantErr: registry.ErrConflict, wantSecond: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := &records{err: c.first}, &records{err: c.second}
			w := rollout.Replicas(func() []lease.Records { return []lease.Records{a, b} })
			_, err := w.Save(t.Context(), lease.Kind, "x", "", nil)
			if !errors.Is(err, c.wantErr) || b.asked != c.wantSecond {
				t.Errorf("got error %v after %d requests to the second server, want %v after %d", err, b.asked, c.wantErr, c.wantSecond)
			}
		})
	}
	if _, err := rollout.Replicas(func() []lease.Records { return nil }).Load(t.Context(), lease.Kind, "x", nil); err == nil {
		t.Error("got no error without any server")
	}
}

// etcd is a list of members; those whose name begins with "ill" are not healthy.
type etcd struct {
	members []membership.Member
	err     error
}

func (e etcd) Members(context.Context) ([]membership.Member, error) { return e.members, e.err }

func (e etcd) Health(_ context.Context, m membership.Member) (membership.Member, error) {
	m.Healthy = m.Name[:3] != "ill"
	return m, nil
}

func TestPeers(t *testing.T) {
	t.Parallel()
	member := func(name string, n byte, learner bool) membership.Member {
		return membership.Member{ID: uint64(n), Name: name, PeerURL: fmt.Sprintf("https://10.0.0.%d:2380", n), Learner: learner}
	}
	for name, c := range map[string]struct {
		etcd etcd
		own  bool
		want string
	}{
		"all healthy":                 {etcd: etcd{members: []membership.Member{member("self", 1, false), member("other", 2, false)}}},
		"this machine is not checked": {etcd: etcd{members: []membership.Member{member("ill-self", 1, false)}}},
		"this machine": {
			etcd: etcd{members: []membership.Member{member("ill-self", 1, false)}}, own: true,
			want: "etcd of ill-self, which is not healthy",
		},
		"a learner does not count": {etcd: etcd{members: []membership.Member{member("ill-new", 2, true)}}},
		"an API server is not ready": {
			etcd: etcd{members: []membership.Member{member("other", 9, false)}},
			want: "the API server of other: it says no",
		},
		"the list of members is unknown": {etcd: etcd{err: errors.New("no leader")}, want: "the list of etcd's members: no leader"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := rollout.Peers{Etcd: c.etcd, Self: "ill-self", API: func(_ context.Context, at netip.Addr) string {
				if at == netip.MustParseAddr("10.0.0.9") {
					return "it says no"
				}
				return ""
			}}
			if got := p.Unwell(t.Context(), c.own); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
