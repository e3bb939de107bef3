// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"fmt"
	"slices"

	"github.com/slipway-project/slipway/internal/core/wait"
)

// Next is the one next safe change.
func Next(seen []Member, w Wanted) Change {
	t := count(seen)
	if t.voters == 0 {
		return Change{Do: Wait, Reason: "no voter is known", For: wait.For{What: "the members of etcd", Who: "etcd"}}
	}
	if q := Quorum(t.voters); t.healthy < q {
		return t.wait(fmt.Sprintf("%s answer; any change needs %d", t, q))
	}
	for _, m := range seen {
		if m.Learner && slices.Contains(w.Dead, m.ID) {
			return Change{Do: Remove, ID: m.ID, Name: m.Name, PeerURL: m.PeerURL, Reason: "nobody looks after this learner any more, and a learner has no vote"}
		}
	}
	switch {
	case w.Leave != "":
		return leave(seen, w.Leave, t)
	case w.Join.PeerURL != "":
		return join(seen, w.Join, t)
	}
	return Change{Do: Done, Reason: "nothing is wanted"}
}

func (t tally) wait(reason string) Change {
	silent := Change{Do: Wait, Reason: reason, For: wait.For{Who: t.provider()}}
	if len(t.silent) == 1 {
		silent.What = "voter " + t.silent[0]
	} else {
		silent.What = fmt.Sprintf("%d voters of etcd", len(t.silent))
	}
	return silent
}

// leave lets a member go when those who stay have a quorum among themselves. Only here is a voter removed.
func leave(seen []Member, name string, t tally) Change {
	m, ok := Find(seen, name, "")
	if !ok {
		return Change{Do: Done, Name: name, Reason: name + " is no member"}
	}
	remove := Change{Do: Remove, ID: m.ID, Name: m.Name, PeerURL: m.PeerURL}
	if m.Learner {
		remove.Reason = "a learner has no vote"
		return remove
	}
	if other, open := learner(seen, m); open {
		return Change{Do: Wait, Reason: "one change at a time", For: wait.For{What: "learner " + other.String(), Who: "the join that brought it"}}
	}
	rest := tally{voters: t.voters - 1, healthy: t.healthy, silent: slices.DeleteFunc(slices.Clone(t.silent), func(s string) bool { return s == m.String() })}
	if m.Healthy {
		rest.healthy--
	}
	if rest.voters == 0 {
		return Change{
			Do: Refuse, ID: m.ID, Name: name, Reason: name + " is the last voter: the cluster's state is nowhere else",
			For: wait.For{Who: "you: let another control plane join first, or reset the whole cluster"},
		}
	}
	if q := Quorum(rest.voters); rest.healthy < q {
		return Change{
			Do: Refuse, ID: m.ID, Name: name, Reason: fmt.Sprintf("without %s, %s would answer; they need %d", name, rest, q),
			For: wait.For{Who: rest.provider()},
		}
	}
	remove.Reason = fmt.Sprintf("without %s, %s answer; they need %d", name, rest, Quorum(rest.voters))
	return remove
}

func join(seen []Member, c Candidate, t tally) Change {
	m, ok := Find(seen, c.Name, c.PeerURL)
	if other, open := learner(seen, m); open {
		return Change{Do: Wait, Reason: "one change at a time", For: wait.For{What: "learner " + other.String(), Who: "the join that brought it"}}
	}
	if ok && (!c.Is(m) || m.Name != "" && m.Name != c.Name) {
		return stranger(m, c)
	}
	if ok && !m.Learner {
		return Change{Do: Done, ID: m.ID, Name: c.Name, PeerURL: m.PeerURL, Reason: "it votes"}
	}
	// While a voter is silent, whoever joins must not be needed for the quorum: it is the newest and least proven of all.
	if q := Quorum(t.voters + 1); t.healthy < t.voters && q > t.healthy {
		return t.wait(fmt.Sprintf("%s answer; a %s needs %d", t, ordinal(t.voters+1), q))
	}
	if !ok {
		return Change{Do: AddLearner, Name: c.Name, PeerURL: c.PeerURL, Reason: fmt.Sprintf("%s answer, and no other learner is on its way", t)}
	}
	if !c.Started || !m.Started || !m.Healthy {
		return Change{Do: Wait, ID: m.ID, Name: c.Name, PeerURL: m.PeerURL, Reason: "only a learner that answers is promoted", For: wait.For{What: "etcd of " + c.Name, Who: c.Name}}
	}
	return Change{Do: Promote, ID: m.ID, Name: c.Name, PeerURL: m.PeerURL, Reason: fmt.Sprintf("it answers, and so do %s", t)}
}

// stranger is about a member that has the candidate's name or its address, and not both.
func stranger(m Member, c Candidate) Change {
	what := fmt.Sprintf("member %s (%s) has the address %s", m, Hex(m.ID), m.PeerURL)
	if m.Learner {
		return Change{Do: Remove, ID: m.ID, Name: m.Name, PeerURL: m.PeerURL, Reason: what + ", and the node another one; a learner has no vote"}
	}
	return Change{
		Do: Wait, ID: m.ID, Name: c.Name, Reason: what + "; the node is " + c.Name + " at " + c.PeerURL,
		For: wait.For{What: "the voter " + m.String() + " to leave", Who: "slipway node remove " + m.String()},
	}
}

// learner is a learner other than m.
func learner(seen []Member, m Member) (Member, bool) {
	at := slices.IndexFunc(seen, func(o Member) bool { return o.Learner && o.ID != m.ID })
	if at < 0 {
		return Member{}, false
	}
	return seen[at], true
}

func ordinal(n int) string {
	words := [...]string{2: "second", 3: "third", 4: "fourth", 5: "fifth", 6: "sixth", 7: "seventh", 8: "eighth", 9: "ninth"}
	if n < 2 || n >= len(words) {
		return fmt.Sprintf("%dth", n)
	}
	return words[n]
}
