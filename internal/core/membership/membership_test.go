// SPDX-License-Identifier: Apache-2.0

package membership_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/membership"
)

// members parses "a b! c~ d~! -e": names of voters; with ~ a learner, with ! unhealthy, with - a learner that never started.
func members(text string) []membership.Member {
	var all []membership.Member
	for _, word := range strings.Fields(text) {
		name := strings.Trim(word, "-~!")
		m := membership.Member{
			ID: uint64(name[0]), Name: name, PeerURL: peer(name), ClientURL: "https://" + name + ":2379", Started: true,
			Healthy: !strings.Contains(word, "!"), Learner: strings.Contains(word, "~"),
		}
		if strings.HasPrefix(word, "-") {
			m = membership.Member{ID: m.ID, PeerURL: m.PeerURL, Learner: true}
		}
		all = append(all, m)
	}
	return all
}

func peer(name string) string { return "https://" + name + ":2380" }

func candidate(name string, started bool) membership.Wanted {
	return membership.Wanted{Join: membership.Candidate{Name: name, PeerURL: peer(name), Started: started}}
}

func TestNext(t *testing.T) {
	t.Parallel()
	type want struct {
		Do       membership.Verb
		ID       uint64
		Reason   string
		Provider string
	}
	moved := members("a b~")
	moved[1].PeerURL = peer("elsewhere")
	movedVoter := members("a b")
	movedVoter[1].PeerURL = peer("elsewhere")
	for name, c := range map[string]struct {
		seen   []membership.Member
		wanted membership.Wanted
		want   want
	}{
		"no members":                      {nil, candidate("a", false), want{membership.Wait, 0, "no voter is known", "etcd"}},
		"nothing wanted":                  {members("a"), membership.Wanted{}, want{membership.Done, 0, "no change is wanted", ""}},
		"the second joins":                {members("a"), candidate("b", false), want{membership.AddLearner, 0, "1 of 1 voter is healthy, and there is no other learner", ""}},
		"a fourth, one unhealthy":         {members("a b c!"), candidate("d", false), want{membership.Wait, 0, "2 of 3 voters are healthy; adding a fourth voter needs 3", "c: its etcd must run"}},
		"a sixth, one unhealthy":          {members("a b c d e!"), candidate("f", false), want{membership.AddLearner, 0, "4 of 5 voters are healthy, and there is no other learner", ""}},
		"a sixth, two unhealthy":          {members("a b c d! e!"), candidate("f", false), want{membership.Wait, 0, "3 of 5 voters are healthy; adding a sixth voter needs 4", "d, e: its etcd must run"}},
		"no quorum":                       {members("a b!"), candidate("c", false), want{membership.Wait, 0, "1 of 2 voters is healthy; any change needs 2", "b: its etcd must run"}},
		"its learner has not started":     {members("a -b"), candidate("b", false), want{membership.Wait, 'b', "only a healthy learner is promoted", "b"}},
		"its node says it has":            {members("a -b"), candidate("b", true), want{membership.Wait, 'b', "only a healthy learner is promoted", "b"}},
		"its node has not reported it":    {members("a b~"), candidate("b", false), want{membership.Wait, 'b', "only a healthy learner is promoted", "b"}},
		"its learner is healthy":          {members("a b~"), candidate("b", true), want{membership.Promote, 'b', "the learner is healthy, and 1 of 1 voter is healthy", ""}},
		"its learner is unhealthy":        {members("a b~!"), candidate("b", true), want{membership.Wait, 'b', "only a healthy learner is promoted", "b"}},
		"a voter became unhealthy":        {members("a b c! d~"), candidate("d", true), want{membership.Wait, 0, "2 of 3 voters are healthy; adding a fourth voter needs 3", "c: its etcd must run"}},
		"there is another learner":        {members("a -b"), candidate("c", false), want{membership.Wait, 0, "only one change at a time", "the join that added it"}},
		"it is a voter":                   {members("a b"), candidate("b", true), want{membership.Done, 'b', "it is a voter", ""}},
		"a learner of its name elsewhere": {moved, candidate("b", false), want{membership.Remove, 'b', "member b (62) has the peer URL https://elsewhere:2380, and the node has another; a learner has no vote", ""}},
		"a voter of its name elsewhere":   {movedVoter, candidate("b", false), want{membership.Wait, 'b', "member b (62) has the peer URL https://elsewhere:2380; the node is b at https://b:2380", "slipway node remove b"}},
		"a dead learner":                  {members("a b~!"), membership.Wanted{Dead: []uint64{'b'}}, want{membership.Remove, 'b', "its join was abandoned, and a learner has no vote", ""}},
		"a dead voter is not removed":     {members("a b c!"), membership.Wanted{Dead: []uint64{'c'}}, want{membership.Done, 0, "no change is wanted", ""}},
		"a dead learner, then the join":   {members("a -b"), membership.Wanted{Dead: []uint64{'b'}, Join: membership.Candidate{Name: "c", PeerURL: peer("c")}}, want{membership.Remove, 'b', "its join was abandoned, and a learner has no vote", ""}},
		"one of three leaves":             {members("a b c"), membership.Wanted{Leave: "b"}, want{membership.Remove, 'b', "without b, 2 of 2 voters are healthy; they need 2", ""}},
		"the unhealthy one leaves":        {members("a b c!"), membership.Wanted{Leave: "c"}, want{membership.Remove, 'c', "without c, 2 of 2 voters are healthy; they need 2", ""}},
		"one leaves, one is unhealthy":    {members("a b c!"), membership.Wanted{Leave: "b"}, want{membership.Refuse, 'b', "without b, only 1 of 2 voters is healthy; they need 2", "c: its etcd must run"}},
		"one of two leaves":               {members("a b"), membership.Wanted{Leave: "a"}, want{membership.Remove, 'a', "without a, 1 of 1 voter is healthy; they need 1", ""}},
		"the last one leaves":             {members("a"), membership.Wanted{Leave: "a"}, want{membership.Refuse, 'a', "a is the last voter: only it has the cluster's data", "you: join another control plane first, or reset the whole cluster"}},
		"the lost half leaves":            {members("a b!"), membership.Wanted{Leave: "b"}, want{membership.Wait, 0, "1 of 2 voters is healthy; any change needs 2", "b: its etcd must run"}},
		"a learner leaves":                {members("a b~"), membership.Wanted{Leave: "b"}, want{membership.Remove, 'b', "a learner has no vote", ""}},
		"one leaves while another joins":  {members("a b c -d"), membership.Wanted{Leave: "b"}, want{membership.Wait, 0, "only one change at a time", "the join that added it"}},
		"an unknown node leaves":          {members("a"), membership.Wanted{Leave: "x"}, want{membership.Done, 0, "x is not a member", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := membership.Next(c.seen, c.wanted)
			if diff := cmp.Diff(c.want, want{got.Do, got.ID, got.Reason, got.Who}); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got.Do == membership.Wait && got.What == "" {
				t.Error("got a wait without What")
			}
		})
	}
}

// cluster is a model of etcd: a change needs a quorum, and a learner is promoted only while it is running.
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

// apply makes the change and checks every invariant.
func (c *cluster) apply(t fataler, w membership.Wanted, ch membership.Change) {
	t.Helper()
	for i := range c.all {
		if c.all[i].Name == "" && c.all[i].Healthy {
			t.Fatalf("the model is wrong: member without a name is healthy: %+v", c.all[i])
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
			t.Fatalf("promote: %d of %d voters are healthy", healthy, voters)
		}
		c.all[at].Learner = false
	case membership.Remove:
		m := c.all[at]
		if !m.Learner && m.Name != w.Leave {
			t.Fatalf("remove voter %+v, which is not leaving", m)
		}
		c.all = slices.Delete(c.all, at, at+1)
	}
	if learners(c.all) > 1 {
		t.Fatalf("%s: two learners: %+v", ch.Do, c.all)
	}
	if ch.Do != membership.Wait && ch.Do != membership.Refuse && ch.Do != membership.Done && !quorum(c.all) {
		t.Fatalf("%s has lost the quorum: %+v", ch.Do, c.all)
	}
}

// In random histories of machines that join, leave, fail and recover, the steps of Next never lose the quorum.
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
			t.Errorf("%s was decided %d times, want at least 1000", verb, done[verb])
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
		if !quorum(seen) { // without a quorum there is no leader, and without a leader no member is healthy
			for i := range seen {
				seen[i].Healthy = false
			}
		}
		ch := membership.Next(seen, h.w)
		done[ch.Do]++
		h.apply(t, h.w, ch)
	}
}

// If all members are healthy, each join and each removal except the last is done in a bounded number of steps.
func TestNextTerminates(t *testing.T) {
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
		t.Fatalf("%+v is not done after 4 steps: %+v", w, c.all)
	}
	for i := 1; i < 7; i++ {
		until(candidate(fmt.Sprintf("n%d", i), true))
	}
	if healthy, voters := votes(c.all); healthy != 7 || voters != 7 {
		t.Fatalf("got %d healthy of %d voters, want 7 of 7", healthy, voters)
	}
	for i := range 6 {
		until(membership.Wanted{Leave: fmt.Sprintf("n%d", i)})
	}
	if got := c.all; len(got) != 1 || got[0].Name != "n6" {
		t.Fatalf("got members %+v, want n6 only", got)
	}
}

// In every cluster of up to five voters and a learner, healthy or not, every wanted change keeps the invariants.
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
		t.Errorf("got %d cases, want at least 1000", cases)
	}
}
