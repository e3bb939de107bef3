// SPDX-License-Identifier: Apache-2.0

package etcdfake

import (
	"maps"
	"slices"
	"time"

	"github.com/slipway-project/slipway/internal/core/membership"
)

// reachable is the process that runs a member and is connected with the others.
func (c *Cluster) reachable(id uint64) *proc {
	for _, p := range c.procs {
		if p.data == id && p.up && !p.cut {
			return p
		}
	}
	return nil
}

// connected counts the voters, and those of them that have been reachable for so long.
func (c *Cluster) connected(since time.Duration) (n, voters int) {
	for id, m := range c.members {
		if m.Learner {
			continue
		}
		voters++
		if p := c.reachable(id); p != nil && time.Since(p.since) >= since {
			n++
		}
	}
	return n, voters
}

// quorum tells whether anything can be agreed on.
func (c *Cluster) quorum() bool {
	n, voters := c.connected(0)
	return voters > 0 && n >= membership.Quorum(voters)
}

// elect keeps a leader if there can be one. A single machine cut from nobody is no partition.
func (c *Cluster) elect() {
	if !c.quorum() {
		c.leader = 0
		return
	}
	if m, ok := c.members[c.leader]; ok && !m.Learner && c.reachable(c.leader) != nil {
		return
	}
	c.leader = 0
	for _, id := range slices.Sorted(maps.Keys(c.members)) {
		if !c.members[id].Learner && c.reachable(id) != nil {
			c.leader = id
			return
		}
	}
}

// list is what the quorum knows, sorted by id.
func (c *Cluster) list() []membership.Member {
	all := make([]membership.Member, 0, len(c.members))
	for _, id := range slices.Sorted(maps.Keys(c.members)) {
		all = append(all, c.members[id])
	}
	return all
}
