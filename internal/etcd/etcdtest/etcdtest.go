// SPDX-License-Identifier: Apache-2.0

// Package etcdtest is the conformance suite for etcd clients, which both the real and the in-memory implementation pass. [Real]
// runs real etcd processes on addresses of the loopback network, with their own certificates. It is for tests only.
//
// Read [Lab] and [Conformance].
//
//	lab := etcdtest.Real(t)      // or etcdtest.Fake(t)
//	lab.Form(t, "a")
//	id, all, err := lab.Client(t, "a").AddLearner(t.Context(), lab.Peer("b"))
package etcdtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/core/membership"
	"github.com/slipway-project/slipway/internal/testkit"
)

// Client is the interface that control/members needs, and keys, by which tests check that data is kept.
type Client interface {
	Members(ctx context.Context) ([]membership.Member, error)
	Health(ctx context.Context, m membership.Member) (membership.Member, error)
	AddLearner(ctx context.Context, peerURL string) (id uint64, all []membership.Member, err error)
	Promote(ctx context.Context, id uint64) error
	Remove(ctx context.Context, id uint64) error
	MoveLeader(ctx context.Context, awayFrom uint64) error
	Put(ctx context.Context, key, value string) error
	Get(ctx context.Context, key string) (string, error)
}

// Lab is a set of machines that can run etcd. Their names are "a" to "z".
type Lab interface {
	Address(node string) string
	Peer(node string) string
	Form(t testing.TB, node string)
	// Start starts a node's etcd. The permit is used only if the node has no data; wipe removes its data first.
	Start(t testing.TB, node string, permit []byte, wipe bool) error
	Kill(t testing.TB, node string)
	Client(t testing.TB, node string) Client // connects to the node's own member
}

// Permit returns the environment with which a node's etcd joins the existing members.
func Permit(node, peer string, all []membership.Member) []byte {
	var cluster []string
	for _, m := range all {
		name := m.Name
		if m.PeerURL == peer {
			name = node
		}
		cluster = append(cluster, name+"="+m.PeerURL)
	}
	return fmt.Appendf(nil, "ETCD_INITIAL_CLUSTER=%s\nETCD_INITIAL_CLUSTER_STATE=existing\n", strings.Join(cluster, ","))
}

// Join makes a node a voter and returns the ID of its member.
func Join(t testing.TB, lab Lab, by Client, node string) uint64 {
	t.Helper()
	var id uint64
	var all []membership.Member
	testkit.Until(t, time.Minute, "add "+node, func() (err error) {
		id, all, err = by.AddLearner(t.Context(), lab.Peer(node))
		return err
	})
	if err := lab.Start(t, node, Permit(node, lab.Peer(node), all), false); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, time.Minute, "promote "+node, func() error { return by.Promote(t.Context(), id) })
	return id
}

// Votes formats members as "a:voter b:learner", sorted. A member that has never started is listed by its peer address.
func Votes(all []membership.Member) string {
	var line []string
	for _, m := range all {
		vote := ":voter"
		if m.Learner {
			vote = ":learner"
		}
		line = append(line, m.String()+vote)
	}
	slices.Sort(line)
	return strings.Join(line, " ")
}
