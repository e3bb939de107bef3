// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/membership"
)

// grant writes down which member the node was given, and only then lets it start.
func (m *Manager) grant(ctx context.Context, s slot, j joiner, id uint64, all []membership.Member) (membership.Progress, error) {
	hex, before := membership.Hex(id), s.Known[j.Name]
	s.Holder.Phase, s.Holder.Member = added, hex
	s.Holder.Discard = before != "" && before != hex
	s.Known[j.Name] = hex
	if err := m.save(ctx, &s); err != nil {
		return membership.Progress{}, err
	}
	return membership.Progress{Permit: permit(all, id, j), Discard: s.Holder.Discard}, nil
}

// permit is the environment of an etcd that joins. The last line is for nobody but the node that compares permits.
func permit(all []membership.Member, id uint64, j joiner) []byte {
	var cluster []string
	for _, one := range all {
		name := one.Name
		if one.ID == id {
			name = j.Name
		}
		if name == "" { // a voter that never started: etcd compares addresses, and needs some name
			name = membership.Hex(one.ID)
		}
		cluster = append(cluster, name+"="+one.PeerURL)
	}
	slices.Sort(cluster)
	return fmt.Appendf(nil, "ETCD_INITIAL_CLUSTER=%s\nETCD_INITIAL_CLUSTER_STATE=existing\nSLIPWAY_ETCD_MEMBER=%s\n", strings.Join(cluster, ","), membership.Hex(id))
}

// promoted frees the slot. That the node votes is true whatever becomes of the record: a slot that is not freed expires.
func (m *Manager) promoted(ctx context.Context, s slot, j joiner, own membership.Member) (membership.Progress, error) {
	hex := membership.Hex(own.ID)
	mine := s.Holder.is(j.Node) && s.Holder.joins()
	if mine || s.Known[j.Name] != hex {
		if mine {
			s.Holder = nil
		}
		s.Known[j.Name] = hex
		if err := m.save(ctx, &s); err != nil {
			m.log.Warn("the etcd slot was not freed; it expires by itself", "node", j.Name, "err", err)
		}
	}
	return membership.Progress{Promoted: true}, nil
}
