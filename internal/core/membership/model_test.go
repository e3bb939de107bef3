// SPDX-License-Identifier: Apache-2.0

package membership_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/slipway-project/slipway/internal/core/membership"
)

// cluster is etcd as far as Next may count on it: a change happens only with a quorum, a learner is promoted only when it runs.
type cluster struct {
	all  []membership.Member
	next uint64
}

func votes(all []membership.Member) (healthy, voters int) {
	for _, m := range all {
		if m.Learner {
			continue
		}
		voters++
		if m.Healthy {
			healthy++
		}
	}
	return healthy, voters
}

func quorum(all []membership.Member) bool {
	healthy, voters := votes(all)
	return healthy >= membership.Quorum(voters)
}

func learners(all []membership.Member) (n int) {
	for _, m := range all {
		if m.Learner {
			n++
		}
	}
	return n
}

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// apply does the change, and checks everything that must hold of it.
func (c *cluster) apply(t fataler, w membership.Wanted, ch membership.Change) {
	t.Helper()
	for i := range c.all { // nobody else is counted on
		if c.all[i].Name == "" && c.all[i].Healthy {
			t.Fatalf("the model is wrong: %+v", c.all[i])
		}
	}
	if ch.Reason == "" || ch.Do == membership.Wait && ch.What == "" {
		t.Fatalf("%+v: no reason", ch)
	}
	at := slices.IndexFunc(c.all, func(m membership.Member) bool { return m.ID == ch.ID })
	healthy, voters := votes(c.all)
	if ch.Do != membership.Wait && ch.Do != membership.Refuse && ch.Do != membership.Done && !quorum(c.all) {
		t.Fatalf("%s without a quorum: %d of %d", ch.Do, healthy, voters)
	}
	switch ch.Do {
	case membership.AddLearner:
		c.next++
		c.all = append(c.all, membership.Member{ID: c.next, PeerURL: ch.PeerURL, Learner: true})
	case membership.Promote:
		m := c.all[at]
		if !m.Learner || !m.Healthy || !m.Started || m.PeerURL != w.Join.PeerURL {
			t.Fatalf("promote %+v", m)
		}
		if healthy < voters && membership.Quorum(voters+1) > healthy {
			t.Fatalf("promote: %d of %d voters answer", healthy, voters)
		}
		c.all[at].Learner = false
	case membership.Remove:
		m := c.all[at]
		if !m.Learner && m.Name != w.Leave {
			t.Fatalf("remove voter %+v, who does not leave", m)
		}
		c.all = slices.Delete(c.all, at, at+1)
	}
	if learners(c.all) > 1 {
		t.Fatalf("%s: two open changes: %+v", ch.Do, c.all)
	}
	if ch.Do != membership.Wait && ch.Do != membership.Refuse && ch.Do != membership.Done && !quorum(c.all) {
		t.Fatalf("%s has lost the quorum: %+v", ch.Do, c.all)
	}
}

// Histories of machines that come, go, die and come back, in which only Next changes members.
func TestNextNeverLosesTheQuorum(t *testing.T) {
	t.Parallel()
	done := map[membership.Verb]int{}
	for seed := range uint64(5000) {
		h := &history{cluster: cluster{next: 1, all: []membership.Member{{ID: 1, Name: "n0", PeerURL: peer("n0"), Started: true, Healthy: true}}}}
		h.r = rand.New(rand.NewPCG(seed, 3)) //nolint:gosec // a test
		for range 150 {
			h.event(t, done)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	for _, verb := range []membership.Verb{membership.AddLearner, membership.Promote, membership.Remove, membership.Wait, membership.Refuse, membership.Done} {
		if done[verb] < 1000 {
			t.Errorf("%s was decided %d times only: the histories are too tame", verb, done[verb])
		}
	}
}

type history struct {
	cluster
	r *rand.Rand
	w membership.Wanted
}

func (h *history) event(t *testing.T, done map[membership.Verb]int) {
	node := fmt.Sprintf("n%d", h.r.IntN(7))
	at := slices.IndexFunc(h.all, func(m membership.Member) bool { return m.PeerURL == peer(node) })
	switch n := h.r.IntN(100); {
	case n < 10:
		h.w = membership.Wanted{Join: membership.Candidate{Name: node, PeerURL: peer(node)}}
	case n < 15:
		h.w = membership.Wanted{Leave: node}
	case n < 18:
		if at >= 0 {
			h.w.Dead = append(h.w.Dead, h.all[at].ID)
		}
	case n < 45:
		h.w.Join.Started = true
		if at >= 0 {
			h.all[at].Name, h.all[at].Started, h.all[at].Healthy = node, true, true
		}
	case n < 50:
		if at >= 0 {
			h.all[at].Healthy = false
		}
	default:
		seen := slices.Clone(h.all)
		if !quorum(seen) { // who has no quorum knows no leader
			for i := range seen {
				seen[i].Healthy = false
			}
		}
		ch := membership.Next(seen, h.w)
		done[ch.Do]++
		h.apply(t, h.w, ch)
	}
}

// With everybody up, all who want get in, and all but one get out, in a bounded number of steps.
func TestNextGetsThere(t *testing.T) {
	t.Parallel()
	c := &cluster{next: 1, all: []membership.Member{{ID: 1, Name: "n0", PeerURL: peer("n0"), Started: true, Healthy: true}}}
	until := func(w membership.Wanted) {
		for range 4 {
			ch := membership.Next(c.all, w)
			if ch.Do == membership.Done {
				return
			}
			c.apply(t, w, ch)
			for i := range c.all {
				c.all[i].Started, c.all[i].Healthy = true, true
				if c.all[i].Name == "" {
					c.all[i].Name = w.Join.Name
				}
			}
		}
		t.Fatalf("%+v is not done: %+v", w, c.all)
	}
	for i := 1; i < 7; i++ {
		until(candidate(fmt.Sprintf("n%d", i), true))
	}
	if healthy, voters := votes(c.all); healthy != 7 || voters != 7 {
		t.Fatalf("%d of %d, want 7", healthy, voters)
	}
	for i := range 6 {
		until(membership.Wanted{Leave: fmt.Sprintf("n%d", i)})
	}
	if got := c.all; len(got) != 1 || got[0].Name != "n6" {
		t.Fatalf("left over: %+v", got)
	}
}

// Every small cluster: up to five voters and a learner, each up or down, and everything that may be wanted of it.
func TestNextInEverySmallCluster(t *testing.T) {
	t.Parallel()
	cases := 0
	for voters := 1; voters <= 5; voters++ {
		for learner := range 2 {
			for up := range 1 << (voters + learner) {
				var all []membership.Member
				for i := range voters + learner {
					name := fmt.Sprintf("n%d", i)
					all = append(all, membership.Member{ID: uint64(i + 1), Name: name, PeerURL: peer(name), Started: true, Healthy: up&(1<<i) != 0, Learner: i >= voters})
				}
				for i := range voters + learner + 1 {
					name := fmt.Sprintf("n%d", i)
					for _, w := range []membership.Wanted{{Leave: name}, candidate(name, true), candidate(name, false), {Dead: []uint64{uint64(i + 1)}}} {
						c := &cluster{next: 100, all: slices.Clone(all)}
						c.apply(t, w, membership.Next(all, w))
						cases++
					}
				}
			}
		}
	}
	if cases < 1000 {
		t.Errorf("only %d cases", cases)
	}
}
