// SPDX-License-Identifier: Apache-2.0

package membership_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/membership"
)

// members reads "a b! c~ d~! -": voters; "~" learner; "!" silent; "-x": a learner at x that never started.
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
		"nobody seen":                      {nil, candidate("a", false), want{membership.Wait, 0, "no voter is known", "etcd"}},
		"nothing wanted":                   {members("a"), membership.Wanted{}, want{membership.Done, 0, "nothing is wanted", ""}},
		"the second joins":                 {members("a"), candidate("b", false), want{membership.AddLearner, 0, "1 of 1 voter answer, and no other learner is on its way", ""}},
		"a fourth with one silent":         {members("a b c!"), candidate("d", false), want{membership.Wait, 0, "2 of 3 voters answer; a fourth needs 3", "c: its etcd must run"}},
		"a sixth with one silent":          {members("a b c d e!"), candidate("f", false), want{membership.AddLearner, 0, "4 of 5 voters answer, and no other learner is on its way", ""}},
		"a sixth with two silent":          {members("a b c d! e!"), candidate("f", false), want{membership.Wait, 0, "3 of 5 voters answer; a sixth needs 4", "d, e: its etcd must run"}},
		"no quorum":                        {members("a b!"), candidate("c", false), want{membership.Wait, 0, "1 of 2 voters answer; any change needs 2", "b: its etcd must run"}},
		"its learner has not started":      {members("a -b"), candidate("b", false), want{membership.Wait, 'b', "only a learner that answers is promoted", "b"}},
		"its learner says it has":          {members("a -b"), candidate("b", true), want{membership.Wait, 'b', "only a learner that answers is promoted", "b"}},
		"its node does not say so":         {members("a b~"), candidate("b", false), want{membership.Wait, 'b', "only a learner that answers is promoted", "b"}},
		"its learner answers":              {members("a b~"), candidate("b", true), want{membership.Promote, 'b', "it answers, and so do 1 of 1 voter", ""}},
		"its learner is silent":            {members("a b~!"), candidate("b", true), want{membership.Wait, 'b', "only a learner that answers is promoted", "b"}},
		"a voter has gone since":           {members("a b c! d~"), candidate("d", true), want{membership.Wait, 0, "2 of 3 voters answer; a fourth needs 3", "c: its etcd must run"}},
		"another learner is on its way":    {members("a -b"), candidate("c", false), want{membership.Wait, 0, "one change at a time", "the join that brought it"}},
		"it votes":                         {members("a b"), candidate("b", true), want{membership.Done, 'b', "it votes", ""}},
		"a learner of its name elsewhere":  {moved, candidate("b", false), want{membership.Remove, 'b', "member b (62) has the address https://elsewhere:2380, and the node another one; a learner has no vote", ""}},
		"a voter of its name elsewhere":    {movedVoter, candidate("b", false), want{membership.Wait, 'b', "member b (62) has the address https://elsewhere:2380; the node is b at https://b:2380", "slipway node remove b"}},
		"a dead learner":                   {members("a b~!"), membership.Wanted{Dead: []uint64{'b'}}, want{membership.Remove, 'b', "nobody looks after this learner any more, and a learner has no vote", ""}},
		"a dead voter is nobody's to take": {members("a b c!"), membership.Wanted{Dead: []uint64{'c'}}, want{membership.Done, 0, "nothing is wanted", ""}},
		"a dead learner, then the join":    {members("a -b"), membership.Wanted{Dead: []uint64{'b'}, Join: membership.Candidate{Name: "c", PeerURL: peer("c")}}, want{membership.Remove, 'b', "nobody looks after this learner any more, and a learner has no vote", ""}},
		"one of three leaves":              {members("a b c"), membership.Wanted{Leave: "b"}, want{membership.Remove, 'b', "without b, 2 of 2 voters answer; they need 2", ""}},
		"the silent one leaves":            {members("a b c!"), membership.Wanted{Leave: "c"}, want{membership.Remove, 'c', "without c, 2 of 2 voters answer; they need 2", ""}},
		"one leaves, one is silent":        {members("a b c!"), membership.Wanted{Leave: "b"}, want{membership.Refuse, 'b', "without b, 1 of 2 voters would answer; they need 2", "c: its etcd must run"}},
		"one of two leaves":                {members("a b"), membership.Wanted{Leave: "a"}, want{membership.Remove, 'a', "without a, 1 of 1 voter answer; they need 1", ""}},
		"the last one leaves":              {members("a"), membership.Wanted{Leave: "a"}, want{membership.Refuse, 'a', "a is the last voter: the cluster's state is nowhere else", "you: let another control plane join first, or reset the whole cluster"}},
		"the lost half leaves":             {members("a b!"), membership.Wanted{Leave: "b"}, want{membership.Wait, 0, "1 of 2 voters answer; any change needs 2", "b: its etcd must run"}},
		"a learner leaves":                 {members("a b~"), membership.Wanted{Leave: "b"}, want{membership.Remove, 'b', "a learner has no vote", ""}},
		"one leaves while another joins":   {members("a b c -d"), membership.Wanted{Leave: "b"}, want{membership.Wait, 0, "one change at a time", "the join that brought it"}},
		"a stranger leaves":                {members("a"), membership.Wanted{Leave: "x"}, want{membership.Done, 0, "x is no member", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := membership.Next(c.seen, c.wanted)
			if diff := cmp.Diff(c.want, want{got.Do, got.ID, got.Reason, got.Who}); diff != "" {
				t.Error(diff)
			}
			if got.Do == membership.Wait && got.What == "" {
				t.Error("it waits for nothing")
			}
		})
	}
}
