// SPDX-License-Identifier: Apache-2.0

package lock

import (
	"fmt"
	"time"
)

// Phase is how far a machine has gone.
type Phase string

// A machine is in one of three phases.
const (
	Free      Phase = "free"      // it belongs to nobody
	Claimed   Phase = "claimed"   // a request is being worked on; it may still be undone
	Committed Phase = "committed" // it belongs to a cluster; only a reset undoes that
)

// By is who claims machines.
type By string

// There are two ways into a cluster.
const (
	Init By = "init" // an operator makes a cluster of this machine
	Join By = "join" // a cluster takes this machine in
)

// State is what the journal says. Claimed and Committed have By and ID, Committed alone has Cluster and Node.
type State struct {
	Phase   Phase     `json:"phase"`
	By      By        `json:"by,omitempty"`
	ID      string    `json:"id,omitempty"` // of the request
	Cluster string    `json:"cluster,omitempty"`
	Node    string    `json:"node,omitempty"`
	Since   time.Time `json:"since,omitzero"` // zero for a machine that never was anything else than free
}

// String is the state for people, without the time: "free", "claimed (init r1)", "committed (cluster 8f3a…)".
func (s State) String() string {
	switch s.Phase {
	case Claimed:
		return fmt.Sprintf("claimed (%s %s)", s.By, s.ID)
	case Committed:
		return fmt.Sprintf("committed (cluster %s)", s.Cluster)
	case Free:
		return "free"
	default:
		return fmt.Sprintf("in the unknown phase %q", string(s.Phase))
	}
}

// check refuses what no version of this program has written under this schema.
func (s State) check() error {
	claim := (s.By == Init || s.By == Join) && s.ID != ""
	home := s.Cluster != "" && s.Node != ""
	switch {
	case s.Phase == Free && s.By == "" && s.ID == "" && s.Cluster == "" && s.Node == "",
		s.Phase == Claimed && claim && s.Cluster == "" && s.Node == "",
		s.Phase == Committed && claim && home:
		return nil
	}
	return fmt.Errorf("it makes no sense: %+v", s)
}

// TakenError is the refusal of a step that this state does not allow.
type TakenError struct {
	Asked string // the step
	State State  // what stands in its way
}

func (e *TakenError) Error() string {
	if e.State.Since.IsZero() {
		return fmt.Sprintf("%s: it is %s", e.Asked, e.State)
	}
	return fmt.Sprintf("%s: it is %s since %s", e.Asked, e.State, e.State.Since.Format(time.RFC3339))
}
