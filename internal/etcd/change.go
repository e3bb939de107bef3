// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/slipway-project/slipway/internal/core/membership"
	"github.com/slipway-project/slipway/internal/etcd/etcdpb"
)

// AddLearner adds a member without a vote, which etcd starts as soon as somebody runs it. all has it in it.
// An error that is none of membership's means that nobody knows whether it was added.
func (c *Client) AddLearner(ctx context.Context, peerURL string) (id uint64, all []membership.Member, err error) {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	var answer etcdpb.MemberAddResponse
	if err := askOne(ctx, c.own, methodAdd, &etcdpb.MemberAddRequest{PeerUrls: []string{peerURL}, IsLearner: true}, &answer); err != nil {
		return 0, nil, fmt.Errorf("add learner %s: %w", peerURL, typed(err))
	}
	return answer.GetMember().GetId(), translate(answer.GetMembers()), nil
}

// Promote gives a learner its vote.
func (c *Client) Promote(ctx context.Context, id uint64) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	if err := askOne(ctx, c.own, methodPromote, &etcdpb.MemberRequest{Id: id}, &etcdpb.Answer{}); err != nil {
		return fmt.Errorf("promote learner %s: %w", membership.Hex(id), typed(err))
	}
	return nil
}

// Remove takes a member out for good; its data is worthless from then on. Other members are asked to do it, so that one that
// removes itself still hears the answer.
func (c *Client) Remove(ctx context.Context, id uint64) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	servers, done, err := c.others(ctx, id)
	if err != nil {
		return fmt.Errorf("remove member %s: %w", membership.Hex(id), err)
	}
	defer done()
	if err := askOne(ctx, servers, methodRemove, &etcdpb.MemberRequest{Id: id}, &etcdpb.Answer{}); err != nil {
		return fmt.Errorf("remove member %s: %w", membership.Hex(id), typed(err))
	}
	return nil
}

// MoveLeader makes another healthy voter lead, if id leads.
func (c *Client) MoveLeader(ctx context.Context, id uint64) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	all, err := c.Members(ctx)
	if err != nil {
		return fmt.Errorf("move leader away from %s: %w", membership.Hex(id), err)
	}
	for _, m := range all {
		if m.ID != id {
			continue
		}
		if m, err = c.Health(ctx, m); err != nil || !m.Leader {
			return err
		}
		return c.move(ctx, m, all)
	}
	return nil // whoever is no member does not lead
}

func (c *Client) move(ctx context.Context, leader membership.Member, all []membership.Member) error {
	server, err := dial(leader.ClientURL, c.tls) // only the leader takes this question
	if err != nil {
		return fmt.Errorf("move leader away from %s: %w", leader, err)
	}
	defer func() { _ = server.Close() }()
	var tried []error
	for _, m := range all {
		if m.ID == leader.ID || m.Learner {
			continue
		}
		if m, err = c.Health(ctx, m); err != nil || !m.Healthy {
			continue
		}
		if err := to(ctx, server, m); err != nil {
			tried = append(tried, err)
			continue
		}
		return nil
	}
	return fmt.Errorf("move leader away from %s: no other voter takes over: %w", leader, errors.Join(tried...))
}

func to(ctx context.Context, leader conn, m membership.Member) error {
	if err := leader.ask(ctx, methodMoveLeader, &etcdpb.MoveLeaderRequest{TargetId: m.ID}, &etcdpb.Answer{}); err != nil {
		return fmt.Errorf("to %s: %w", m, typed(err))
	}
	return nil
}

// typed puts membership's word for it in front of what etcd says.
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
