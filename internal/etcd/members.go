// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/slipway-project/slipway/internal/core/membership"
	"github.com/slipway-project/slipway/internal/etcd/etcdpb"
)

// Members is the list as a quorum knows it now, sorted by id. A voter answers it; nobody has asked the members for their health.
// Every error means that the members are unknown, never that there are none.
func (c *Client) Members(ctx context.Context) ([]membership.Member, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var answer etcdpb.MemberListResponse
	if err := askOne(ctx, c.own, methodList, &etcdpb.MemberListRequest{Linearizable: true}, &answer); err != nil {
		return nil, fmt.Errorf("list etcd members: %w", typed(err))
	}
	if len(answer.GetMembers()) == 0 {
		return nil, fmt.Errorf("list etcd members: an empty list, which no cluster has")
	}
	return translate(answer.GetMembers()), nil
}

// Health is the member with Healthy and Leader as it answers itself. One that does not answer in a second is not healthy; an
// error means that the question could not be asked.
func (c *Client) Health(ctx context.Context, m membership.Member) (membership.Member, error) {
	m.Healthy, m.Leader = false, false
	if m.ClientURL == "" {
		return m, nil // it has never started
	}
	limited, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	server, err := dial(m.ClientURL, c.tls)
	if err != nil {
		return m, fmt.Errorf("ask member %s: %w", m, err)
	}
	defer func() { _ = server.Close() }() // the answer is there, or is not
	var status etcdpb.StatusResponse
	err = server.ask(limited, methodStatus, &etcdpb.StatusRequest{}, &status)
	if ctx.Err() != nil {
		return m, fmt.Errorf("ask member %s: %w", m, ctx.Err())
	}
	if err != nil || status.GetHeader().GetMemberId() != m.ID {
		return m, nil // whoever does not answer is not healthy, and that is the answer
	}
	// A member that is cut off forgets its leader within an election timeout.
	m.Healthy, m.Leader = status.GetLeader() != 0, status.GetLeader() == m.ID
	return m, nil
}

func translate(list []*etcdpb.Member) []membership.Member {
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

func first(urls []string) string {
	if len(urls) == 0 {
		return ""
	}
	return urls[0]
}

// others are connections to voters apart from one member, which does not have to survive the answer.
func (c *Client) others(ctx context.Context, not uint64) (servers []conn, done func(), err error) {
	all, err := c.Members(ctx)
	if err != nil {
		return nil, nil, err
	}
	var urls []string
	for _, m := range all {
		if m.ID != not && !m.Learner && m.ClientURL != "" {
			urls = append(urls, m.ClientURL)
		}
	}
	if len(urls) == 0 {
		return c.own, func() {}, nil
	}
	if servers, err = c.to(urls...); err != nil {
		return nil, nil, err
	}
	return servers, func() { _ = closeAll(servers) }, nil
}
