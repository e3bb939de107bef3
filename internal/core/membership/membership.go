// SPDX-License-Identifier: Apache-2.0

// Package membership decides how etcd's membership changes: from the observed members and the wanted change it computes the
// next step that is safe, or says what has to happen first. It performs no step itself. After every step that it returns, the
// healthy voters are still a quorum.
//
// Read [Member], [Wanted] and [Next].
//
//	observed: three voters, of which a and b are healthy; wanted: d joins
//	change:   Wait "2 of 3 voters are healthy; adding a fourth voter needs 3", for "voter c", from "c: its etcd must run"
package membership

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/slipway-project/slipway/internal/core/wait"
)

// Errors of a change that etcd refused. After any other error it is unknown whether the change was made: observe the members
// again.
var (
	ErrNotCaughtUp = errors.New("the learner has not caught up with the leader")
	ErrNotLearner  = errors.New("the member is not a learner")
	ErrNotFound    = errors.New("there is no such member")
	ErrExists      = errors.New("a member already has this peer address")
	ErrBusy        = errors.New("another learner has not been promoted yet")
	ErrUnsettled   = errors.New("not every voter has been connected for some seconds")
)

// Member is one observed member of etcd.
type Member struct {
	ID        uint64
	Name      string // empty until its first start
	PeerURL   string
	ClientURL string // empty until its first start
	Learner   bool
	Started   bool // it has started at least once
	Healthy   bool // it answered and knows a leader; false also if it was not asked
	Leader    bool
}

// Hex returns a member's ID as etcd prints it.
func Hex(id uint64) string { return strconv.FormatUint(id, 16) }

// String returns the member's name, otherwise its peer URL, otherwise its ID.
func (m Member) String() string {
	switch {
	case m.Name != "":
		return m.Name
	case m.PeerURL != "":
		return m.PeerURL
	}
	return Hex(m.ID)
}

// Quorum returns how many of so many voters must agree.
func Quorum(voters int) int { return voters/2 + 1 }

// Candidate is a node whose etcd should become a voter.
type Candidate struct {
	Name    string
	PeerURL string
	Started bool // the node reports that its etcd is running
}

// Wanted is the wanted change of the membership. Dead is handled before Leave, and Leave before Join.
type Wanted struct {
	Dead  []uint64  // IDs of learners whose join was abandoned; voters in this list are not removed
	Leave string    // name of a node that is being removed; empty: none
	Join  Candidate // zero: none
}

// Verb is the kind of a [Change].
type Verb string

// The verbs.
const (
	Wait       Verb = "wait"        // no step is safe now: For says what has to happen first
	AddLearner Verb = "add learner" // with Name and PeerURL
	Promote    Verb = "promote"     // the member with ID
	Remove     Verb = "remove"      // the member with ID
	Refuse     Verb = "refuse"      // no step will be safe until a person acts: For says who can do what
	Done       Verb = "done"        // the membership is as wanted
)

// Change is the next step.
type Change struct {
	Do       Verb
	ID       uint64 // of the member that Promote and Remove change
	Name     string
	PeerURL  string
	Reason   string // never empty
	wait.For        // Wait: what has to happen first; Wait and Refuse: who can make it happen
}

// Progress says how far the join of a control plane's etcd has got. Exactly one of Permit, Promoted and Wait is set.
type Progress struct {
	// Permit is an environment file without which the node's etcd does not start. It contains the ID of its member: two permits
	// are equal only if they are for the same member.
	Permit []byte
	// Discard: the node's etcd data, if any, belongs to a member that was removed, and must be deleted before etcd starts. It is
	// sent with every copy of the permit: a node that already has this very permit on disk has deleted the data and must not
	// delete it again.
	Discard  bool
	Promoted bool      // its member is a voter, and the lease is released
	Wait     *wait.For // what has to happen first
}

// Is reports whether the member is the candidate's.
func (c Candidate) Is(m Member) bool { return c.PeerURL != "" && m.PeerURL == c.PeerURL }

// Find returns the member with the node's peer URL, otherwise the one with its name.
func Find(observed []Member, name, peerURL string) (Member, bool) {
	at := slices.IndexFunc(observed, func(m Member) bool { return peerURL != "" && m.PeerURL == peerURL })
	if at < 0 {
		at = slices.IndexFunc(observed, func(m Member) bool { return name != "" && m.Name == name })
	}
	if at < 0 {
		return Member{}, false
	}
	return observed[at], true
}

// Next returns the next step towards the wanted membership.
func Next(observed []Member, w Wanted) Change {
	t := count(observed)
	if t.voters == 0 {
		return Change{Do: Wait, Reason: "no voter is known", For: wait.For{What: "the members of etcd", Who: "etcd"}}
	}
	if q := Quorum(t.voters); t.healthy < q {
		return t.wait(fmt.Sprintf("%s; any change needs %d", t.health(), q))
	}
	for _, m := range observed {
		if m.Learner && slices.Contains(w.Dead, m.ID) {
			return Change{Do: Remove, ID: m.ID, Name: m.Name, PeerURL: m.PeerURL, Reason: "its join was abandoned, and a learner has no vote"}
		}
	}
	switch {
	case w.Leave != "":
		return leave(observed, w.Leave, t)
	case w.Join.PeerURL != "":
		return join(observed, w.Join, t)
	}
	return Change{Do: Done, Reason: "no change is wanted"}
}

// leave removes a member if the remaining voters have a quorum among themselves. Only this function removes a voter.
func leave(observed []Member, name string, t tally) Change {
	m, ok := Find(observed, name, "")
	if !ok {
		return Change{Do: Done, Name: name, Reason: name + " is not a member"}
	}
	remove := Change{Do: Remove, ID: m.ID, Name: m.Name, PeerURL: m.PeerURL}
	if m.Learner {
		remove.Reason = "a learner has no vote"
		return remove
	}
	if other, open := otherLearner(observed, m); open {
		return waitForLearner(other)
	}
	rest := tally{voters: t.voters - 1, healthy: t.healthy, unhealthy: slices.DeleteFunc(slices.Clone(t.unhealthy), func(s string) bool { return s == m.String() })}
	if m.Healthy {
		rest.healthy--
	}
	if rest.voters == 0 {
		return Change{
			Do: Refuse, ID: m.ID, Name: name, Reason: name + " is the last voter: only it has the cluster's data",
			For: wait.For{Who: "you: join another control plane first, or reset the whole cluster"},
		}
	}
	if q := Quorum(rest.voters); rest.healthy < q {
		return Change{
			Do: Refuse, ID: m.ID, Name: name, Reason: fmt.Sprintf("without %s, only %s; they need %d", name, rest.health(), q),
			For: wait.For{Who: rest.provider()},
		}
	}
	remove.Reason = fmt.Sprintf("without %s, %s; they need %d", name, rest.health(), Quorum(rest.voters))
	return remove
}

// join makes the candidate a learner and then a voter.
func join(observed []Member, c Candidate, t tally) Change {
	m, ok := Find(observed, c.Name, c.PeerURL)
	if other, open := otherLearner(observed, m); open {
		return waitForLearner(other)
	}
	if ok && (!c.Is(m) || m.Name != "" && m.Name != c.Name) {
		return mismatch(m, c)
	}
	if ok && !m.Learner {
		return Change{Do: Done, ID: m.ID, Name: c.Name, PeerURL: m.PeerURL, Reason: "it is a voter"}
	}
	// While a voter is unhealthy, the quorum must not depend on the new voter, because it is the least proven of all.
	if q := Quorum(t.voters + 1); t.healthy < t.voters && q > t.healthy {
		return t.wait(fmt.Sprintf("%s; adding a %s voter needs %d", t.health(), ordinal(t.voters+1), q))
	}
	if !ok {
		return Change{Do: AddLearner, Name: c.Name, PeerURL: c.PeerURL, Reason: t.health() + ", and there is no other learner"}
	}
	if !c.Started || !m.Started || !m.Healthy {
		return Change{
			Do: Wait, ID: m.ID, Name: c.Name, PeerURL: m.PeerURL, Reason: "only a healthy learner is promoted",
			For: wait.For{What: "etcd of " + c.Name, Who: c.Name},
		}
	}
	return Change{Do: Promote, ID: m.ID, Name: c.Name, PeerURL: m.PeerURL, Reason: "the learner is healthy, and " + t.health()}
}

// mismatch handles a member that has either the candidate's name or its peer URL, but not both.
func mismatch(m Member, c Candidate) Change {
	what := fmt.Sprintf("member %s (%s) has the peer URL %s", m, Hex(m.ID), m.PeerURL)
	if m.Learner {
		return Change{Do: Remove, ID: m.ID, Name: m.Name, PeerURL: m.PeerURL, Reason: what + ", and the node has another; a learner has no vote"}
	}
	return Change{
		Do: Wait, ID: m.ID, Name: c.Name, Reason: what + "; the node is " + c.Name + " at " + c.PeerURL,
		For: wait.For{What: "the removal of voter " + m.String(), Who: "slipway node remove " + m.String()},
	}
}

// otherLearner returns a learner other than m.
func otherLearner(observed []Member, m Member) (Member, bool) {
	at := slices.IndexFunc(observed, func(o Member) bool { return o.Learner && o.ID != m.ID })
	if at < 0 {
		return Member{}, false
	}
	return observed[at], true
}

func waitForLearner(m Member) Change {
	return Change{Do: Wait, Reason: "only one change at a time", For: wait.For{What: "learner " + m.String(), Who: "the join that added it"}}
}

// tally counts the voters.
type tally struct {
	voters, healthy int
	unhealthy       []string // sorted
}

func count(observed []Member) tally {
	var t tally
	for _, m := range observed {
		switch {
		case m.Learner:
		case m.Healthy:
			t.voters++
			t.healthy++
		default:
			t.voters++
			t.unhealthy = append(t.unhealthy, m.String())
		}
	}
	slices.Sort(t.unhealthy)
	return t
}

// health returns, for example, "2 of 3 voters are healthy".
func (t tally) health() string {
	noun, verb := "voters", "are"
	if t.voters == 1 {
		noun = "voter"
	}
	if t.healthy == 1 || t.voters == 1 {
		verb = "is"
	}
	return fmt.Sprintf("%d of %d %s %s healthy", t.healthy, t.voters, noun, verb)
}

// provider returns who has to act so that the unhealthy voters become healthy.
func (t tally) provider() string { return strings.Join(t.unhealthy, ", ") + ": its etcd must run" }

// wait returns a change that waits for the unhealthy voters.
func (t tally) wait(reason string) Change {
	what := fmt.Sprintf("%d voters of etcd", len(t.unhealthy))
	if len(t.unhealthy) == 1 {
		what = "voter " + t.unhealthy[0]
	}
	return Change{Do: Wait, Reason: reason, For: wait.For{What: what, Who: t.provider()}}
}

func ordinal(n int) string {
	words := [...]string{2: "second", 3: "third", 4: "fourth", 5: "fifth", 6: "sixth", 7: "seventh", 8: "eighth", 9: "ninth"}
	if n < 2 || n >= len(words) {
		return fmt.Sprintf("%dth", n)
	}
	return words[n]
}
