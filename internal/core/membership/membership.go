// SPDX-License-Identifier: Apache-2.0

// Package membership decides how the members of etcd change: from what was seen and what is wanted it names the one next change
// that is safe, or says what has to happen first. It changes nothing itself, and it never names a change after which fewer voters
// answer than a quorum needs.
//
// Read [Member], [Wanted] and [Next].
//
//	seen:   three voters, of which a and b answer; wanted: d joins
//	change: Wait "2 of 3 voters answer; a fourth needs 3", for "voter c", from "c: its etcd must run"
package membership

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/slipway-project/slipway/internal/core/wait"
)

// What whoever changes members answers when the cluster does not allow a change. Any other error means that nobody knows whether
// it was done: look at the members again.
var (
	ErrNotCaughtUp = errors.New("the learner has not caught up with the leader")
	ErrNotLearner  = errors.New("the member is no learner")
	ErrNotFound    = errors.New("there is no such member")
	ErrExists      = errors.New("a member has this peer address already")
	ErrBusy        = errors.New("another learner is on its way")
	ErrUnsettled   = errors.New("not every voter has been connected for some seconds")
)

// Member is one member of etcd as it was seen.
type Member struct {
	ID        uint64
	Name      string // empty until it has started for the first time
	PeerURL   string
	ClientURL string // empty until it has started for the first time
	Learner   bool
	Started   bool // it has been started once
	Healthy   bool // it answered and knows a leader; false, too, when nobody has asked it
	Leader    bool // it leads
}

// Hex is a member's id as etcd prints it.
func Hex(id uint64) string { return strconv.FormatUint(id, 16) }

// String names a member for people.
func (m Member) String() string {
	switch {
	case m.Name != "":
		return m.Name
	case m.PeerURL != "":
		return m.PeerURL
	}
	return Hex(m.ID)
}

// Quorum is how many of so many voters must agree.
func Quorum(voters int) int { return voters/2 + 1 }

// Candidate is a node that should become a voter.
type Candidate struct {
	Name    string
	PeerURL string
	Started bool // the node says that its etcd runs
}

// Wanted is what should become of the members. Dead comes before Leave, and Leave before Join.
type Wanted struct {
	Dead  []uint64  // learners that nobody looks after any more; a voter is never removed for standing here
	Leave string    // name of the node that leaves for good; empty: none
	Join  Candidate // zero: none
}

// Verb is what to do.
type Verb string

// The verbs.
const (
	Wait       Verb = "wait"        // nothing now: For says what for
	AddLearner Verb = "add learner" // Name, PeerURL
	Promote    Verb = "promote"     // ID
	Remove     Verb = "remove"      // ID
	Refuse     Verb = "refuse"      // never as things are: a person must decide
	Done       Verb = "done"        // all is as wanted
)

// Change is the one next step.
type Change struct {
	Do       Verb
	ID       uint64 // of the member that Promote and Remove change
	Name     string
	PeerURL  string
	Reason   string // always: the arithmetic in words
	wait.For        // Wait: what must happen first; Wait and Refuse: who can make it happen
}

// Progress is how far a control plane is on its way into etcd. One of Permit, Promoted and Wait is set.
type Progress struct {
	// Permit is an environment file that lets the node's etcd start. It names the member that it is for: two permits are equal only
	// if they are for the same member.
	Permit []byte
	// Discard: the node's etcd data, if any, belongs to a member that was removed, and must be deleted before etcd starts. It comes
	// with each copy of the permit: a node that has this very permit on its disk has done it, and must not do it again.
	Discard  bool
	Promoted bool      // its member is a voter, and the lease is free again
	Wait     *wait.For // what must happen first
}

// Is tells whether the member is the candidate's.
func (c Candidate) Is(m Member) bool { return c.PeerURL != "" && m.PeerURL == c.PeerURL }

// Find is the member of a node: of its peer address, else of its name.
func Find(seen []Member, name, peerURL string) (Member, bool) {
	at := slices.IndexFunc(seen, func(m Member) bool { return peerURL != "" && m.PeerURL == peerURL })
	if at < 0 {
		at = slices.IndexFunc(seen, func(m Member) bool { return name != "" && m.Name == name })
	}
	if at < 0 {
		return Member{}, false
	}
	return seen[at], true
}

// tally counts votes.
type tally struct {
	voters, healthy int
	silent          []string // voters that do not answer
}

func count(seen []Member) tally {
	var t tally
	for _, m := range seen {
		switch {
		case m.Learner:
		case m.Healthy:
			t.voters++
			t.healthy++
		default:
			t.voters++
			t.silent = append(t.silent, m.String())
		}
	}
	slices.Sort(t.silent)
	return t
}

func (t tally) String() string {
	return fmt.Sprintf("%d of %s", t.healthy, plural(t.voters))
}

func plural(voters int) string {
	if voters == 1 {
		return "1 voter"
	}
	return fmt.Sprintf("%d voters", voters)
}

func (t tally) provider() string { return strings.Join(t.silent, ", ") + ": its etcd must run" }
