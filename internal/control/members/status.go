// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"fmt"

	"github.com/slipway-project/slipway/internal/core/membership"
	"github.com/slipway-project/slipway/internal/core/wait"
)

// Standing is where a node stands in etcd.
type Standing struct {
	Member  string // "voter", "learner"; empty: none
	ID      string // hex
	Healthy bool
	Leader  bool
	Unknown bool      // the member belongs to no node that has a record
	Wait    *wait.For // what its join waits for; as far as this control plane is being asked
}

// Status is where all stand: by node, and by what etcd calls a member that is no node's.
func (m *Manager) Status(ctx context.Context) (map[string]Standing, error) {
	nodes, err := m.records.Nodes(ctx)
	if err != nil {
		return nil, fmt.Errorf("read etcd's members: read the nodes' records: %w", err)
	}
	all, err := m.etcd.Members(ctx)
	if err != nil {
		return nil, err
	}
	asked, err := m.ask(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("read etcd's members: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	out, seen := map[string]Standing{}, map[uint64]bool{}
	for _, n := range nodes {
		peer, _ := PeerURL(n) // without an address its name counts
		own, ok := membership.Find(asked, n.Name, peer)
		wait := m.waits(n.Name, ok && !own.Learner && own.Name == n.Name)
		if !ok && wait == nil {
			continue
		}
		var st Standing
		if ok {
			st, seen[own.ID] = stand(own), true
		}
		st.Wait = wait
		out[n.Name] = st
	}
	for _, one := range asked {
		if !seen[one.ID] {
			st := stand(one)
			st.Unknown = true
			out[one.String()] = st
		}
	}
	return out, nil
}

// waits is what the node waits for. Each control plane knows only what it said itself: a node that votes, or that asks here no
// more, has got on elsewhere. The lock is held.
func (m *Manager) waits(node string, votes bool) *wait.For {
	w, ok := m.waiting[node]
	if !ok {
		return nil
	}
	if votes || m.now().Sub(w.at) > forget {
		delete(m.waiting, node)
		return nil
	}
	return &w.For
}

func stand(one membership.Member) Standing {
	st := Standing{Member: "voter", ID: membership.Hex(one.ID), Healthy: one.Healthy, Leader: one.Leader}
	if one.Learner {
		st.Member = "learner"
	}
	return st
}
