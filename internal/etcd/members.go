// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/slipway-project/slipway/internal/core/membership"
	"github.com/slipway-project/slipway/internal/etcd/etcdpb"
)

// Members returns the current members as a quorum knows them, sorted by ID, without their health. Only a voter can answer. After
// an error the members are unknown; the list is never empty otherwise.
func (c *Client) Members(ctx context.Context) ([]membership.Member, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var response etcdpb.MemberListResponse
	if err := callAny(ctx, c.own, methodList, &etcdpb.MemberListRequest{Linearizable: true}, &response); err != nil {
		return nil, fmt.Errorf("list etcd members: %w", typed(err))
	}
	if len(response.GetMembers()) == 0 {
		return nil, errors.New("list etcd members: etcd returned an empty list")
	}
	return translate(response.GetMembers()), nil
}

// Health returns the member with Healthy and Leader set as the member itself reports them. A member that does not respond within
// a second is not healthy. An error means that the member could not be asked.
func (c *Client) Health(ctx context.Context, m membership.Member) (membership.Member, error) {
	m.Healthy, m.Leader = false, false
	if m.ClientURL == "" {
		return m, nil // it has never started
	}
	limited, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	server, err := dial(m.ClientURL, c.tls)
	if err != nil {
		return m, fmt.Errorf("get status of etcd member %s: %w", m, err)
	}
	defer func() { _ = server.Close() }() // the result is known by then
	var status etcdpb.StatusResponse
	err = server.call(limited, methodStatus, &etcdpb.StatusRequest{}, &status)
	if ctx.Err() != nil {
		return m, fmt.Errorf("get status of etcd member %s: %w", m, ctx.Err())
	}
	if err != nil || status.GetHeader().GetMemberId() != m.ID {
		return m, nil // a member that does not respond is not healthy
	}
	// A member that is cut off from the others forgets its leader within an election timeout.
	m.Healthy, m.Leader = status.GetLeader() != 0, status.GetLeader() == m.ID
	return m, nil
}

// AddLearner adds a member without a vote. all is the new list and includes it. If the error is not one of package membership, it
// is unknown whether the member was added.
func (c *Client) AddLearner(ctx context.Context, peerURL string) (id uint64, all []membership.Member, err error) {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	var response etcdpb.MemberAddResponse
	if err := callAny(ctx, c.own, methodAdd, &etcdpb.MemberAddRequest{PeerUrls: []string{peerURL}, IsLearner: true}, &response); err != nil {
		return 0, nil, fmt.Errorf("add etcd learner %s: %w", peerURL, typed(err))
	}
	return response.GetMember().GetId(), translate(response.GetMembers()), nil
}

// Promote makes a learner a voter.
func (c *Client) Promote(ctx context.Context, id uint64) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	if err := callAny(ctx, c.own, methodPromote, &etcdpb.MemberRequest{Id: id}, &etcdpb.Answer{}); err != nil {
		return fmt.Errorf("promote etcd learner %s: %w", membership.Hex(id), typed(err))
	}
	return nil
}

// Remove removes a member permanently; its data cannot be used any more. It sends the request to the other voters, so that a
// member that removes itself gets the response.
func (c *Client) Remove(ctx context.Context, id uint64) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	if err := c.remove(ctx, id); err != nil {
		return fmt.Errorf("remove etcd member %s: %w", membership.Hex(id), err)
	}
	return nil
}

func (c *Client) remove(ctx context.Context, id uint64) error {
	all, err := c.Members(ctx)
	if err != nil {
		return err
	}
	var urls []string
	for _, m := range all {
		if m.ID != id && !m.Learner && m.ClientURL != "" {
			urls = append(urls, m.ClientURL)
		}
	}
	servers := c.own
	if len(urls) > 0 {
		if servers, err = c.dialAll(urls); err != nil {
			return err
		}
		defer func() { _ = closeAll(servers) }()
	}
	return typed(callAny(ctx, servers, methodRemove, &etcdpb.MemberRequest{Id: id}, &etcdpb.Answer{}))
}

// MoveLeader transfers the leadership to another healthy voter. It does nothing if the member is not the leader.
func (c *Client) MoveLeader(ctx context.Context, id uint64) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	if err := c.moveLeader(ctx, id); err != nil {
		return fmt.Errorf("move etcd leader away from %s: %w", membership.Hex(id), err)
	}
	return nil
}

func (c *Client) moveLeader(ctx context.Context, id uint64) error {
	all, err := c.Members(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(m membership.Member) bool { return m.ID == id })
	if i < 0 {
		return nil
	}
	leader, err := c.Health(ctx, all[i])
	if err != nil || !leader.Leader {
		return err
	}
	server, err := dial(leader.ClientURL, c.tls) // only the leader accepts this request
	if err != nil {
		return err
	}
	defer func() { _ = server.Close() }()
	var errs []error
	for _, m := range all {
		if m.ID == id || m.Learner {
			continue
		}
		if m, err = c.Health(ctx, m); err != nil || !m.Healthy {
			continue
		}
		err := server.call(ctx, methodMoveLeader, &etcdpb.MoveLeaderRequest{TargetId: m.ID}, &etcdpb.Answer{})
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("to %s: %w", m, typed(err)))
	}
	if len(errs) == 0 {
		return errors.New("no other voter is healthy")
	}
	return fmt.Errorf("no other voter takes over: %w", errors.Join(errs...))
}

// translate turns etcd's members into those of package membership, sorted by ID. A member without a name has
// never started.
func translate(list []*etcdpb.Member) []membership.Member {
	first := func(urls []string) string {
		if len(urls) == 0 {
			return ""
		}
		return urls[0]
	}
	all := make([]membership.Member, 0, len(list))
	for _, m := range list {
		all = append(all, membership.Member{
			ID: m.GetId(), Name: m.GetName(), Learner: m.GetIsLearner(), Started: m.GetName() != "",
			PeerURL: first(m.GetPeerUrls()), ClientURL: first(m.GetClientUrls()),
		})
	}
	slices.SortFunc(all, func(a, b membership.Member) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// typed wraps an error of etcd in the matching error of package membership.
func typed(err error) error {
	for from, to := range map[error]error{
		rpctypes.ErrMemberNotLearner:       membership.ErrNotLearner,
		rpctypes.ErrMemberLearnerNotReady:  membership.ErrNotCaughtUp,
		rpctypes.ErrMemberNotFound:         membership.ErrNotFound,
		rpctypes.ErrPeerURLExist:           membership.ErrExists,
		rpctypes.ErrMemberExist:            membership.ErrExists,
		rpctypes.ErrTooManyLearners:        membership.ErrBusy,
		rpctypes.ErrUnhealthy:              membership.ErrUnsettled,
		rpctypes.ErrMemberNotEnoughStarted: membership.ErrUnsettled,
	} {
		if errors.Is(rpctypes.Error(err), from) {
			return fmt.Errorf("%w: %w", to, err)
		}
	}
	return err
}
