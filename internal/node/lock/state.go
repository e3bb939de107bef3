// SPDX-License-Identifier: Apache-2.0

package lock

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/slipway-project/slipway/internal/durable"
)

// Phase is the phase of a machine's membership in a cluster.
type Phase string

// The phases of a machine.
const (
	Free      Phase = "free"      // not a member of a cluster
	Claimed   Phase = "claimed"   // a request is in progress; it may still be undone
	Committed Phase = "committed" // a member of a cluster; only a reset ends that
)

// By is the kind of request that claims a machine.
type By string

// The kinds of requests.
const (
	Init By = "init" // an operator creates a cluster on this machine
	Join By = "join" // this machine joins an existing cluster
)

// State is the content of the node lock. By and ID are set in the phases Claimed and Committed, Cluster and Node in Committed only.
type State struct {
	Phase   Phase     `json:"phase"`
	By      By        `json:"by,omitempty"`
	ID      string    `json:"id,omitempty"` // of the request
	Cluster string    `json:"cluster,omitempty"`
	Node    string    `json:"node,omitempty"`
	Since   time.Time `json:"since,omitzero"` // zero: the machine has always been free
}

// String returns the state without the time: "free", "claimed (init r1)", "committed (cluster 8f3a…)".
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

// valid reports whether the fields are consistent.
func (s State) valid() bool {
	claim := (s.By == Init || s.By == Join) && s.ID != ""
	member := s.Cluster != "" && s.Node != ""
	switch s.Phase {
	case Free:
		return s.By == "" && s.ID == "" && s.Cluster == "" && s.Node == ""
	case Claimed:
		return claim && s.Cluster == "" && s.Node == ""
	case Committed:
		return claim && member
	}
	return false
}

// TakenError reports that the state does not allow a step.
type TakenError struct {
	Step  string
	State State
}

func (e *TakenError) Error() string {
	if e.State.Since.IsZero() {
		return fmt.Sprintf("%s: it is %s", e.Step, e.State)
	}
	return fmt.Sprintf("%s: it is %s since %s", e.Step, e.State, e.State.Since.Format(time.RFC3339))
}

const schema = 1

// read returns the state on the disk.
//
// The file is always replaced as a whole, so a crash or a power cut cannot damage it; a bad disk or a manual edit can. Then the
// previous generation is accepted only if it is committed: in that case the worst outcome is a machine that stays in a cluster for too
// long. "Free" and "claimed" are not accepted, because a commit may have followed, and a wipe would then destroy a member of a cluster.
func read(path string) (State, error) {
	var s State
	recovered, err := durable.Read(path, schema, &s)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return State{Phase: Free}, nil
	case errors.Is(err, durable.ErrSchema):
		return State{}, fmt.Errorf("read node lock: %w: another version of slipway wrote it: use that version, or a newer one", err)
	case errors.Is(err, durable.ErrDamaged):
		return State{}, damaged(path, err.Error())
	case err != nil:
		return State{}, fmt.Errorf("read node lock: %w", err)
	case !s.valid():
		return State{}, damaged(path, fmt.Sprintf("inconsistent state %+v", s))
	case recovered && s.Phase != Committed:
		return State{}, damaged(path, "only the previous generation is readable, and it may be outdated: "+s.String())
	}
	return s, nil
}

func damaged(path, why string) error {
	return fmt.Errorf("read node lock: %s: %w: %s (the machine may belong to a cluster, so it is not changed; "+
		"if it does not, remove %s and %s.prev and restart the agent)", path, durable.ErrDamaged, why, path, path)
}

// writeLocked makes next durable, or restores old. Its error says which of the two states is on the disk, or is an ErrInDoubt.
func (l *Lock) writeLocked(old, next State) error {
	err := l.save(l.path, schema, next)
	if err == nil {
		return nil
	}
	now, readErr := read(l.path)
	if readErr == nil && now == old {
		return fmt.Errorf("write node lock: it is still %s: %w", old, err)
	}
	// The new file is in place but not durable. A second fsync would prove nothing after a failed one, so write the old state again.
	undo := readErr
	if undo == nil {
		undo = l.save(l.path, schema, old)
	}
	if undo == nil {
		return fmt.Errorf("write node lock: it is still %s: %w", old, err)
	}
	l.doubt = true
	return fmt.Errorf("write node lock: %w: %w; restore the old state: %w", ErrInDoubt, err, undo)
}

// lockFile excludes other processes during a step. Each step replaces the node lock's file, so the file lock is on a separate file.
func lockFile(path string) (unlock func(), err error) {
	unlock, err = durable.LockFileBriefly(path + ".flock")
	if err != nil {
		return nil, fmt.Errorf("lock node lock file: %w", err)
	}
	return unlock, nil
}
