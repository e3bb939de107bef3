// SPDX-License-Identifier: Apache-2.0

package lock

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/slipway-project/slipway/internal/durable"
)

const schema = 1

// first is the reading when the journal is opened. A folder that cannot be written to can still be read from.
func (l *Lock) first() (State, error) {
	unlock, err := exclusive(l.path)
	if err == nil {
		defer unlock()
	}
	return read(l.path)
}

// read is what the disk says.
//
// A journal is replaced as a whole, so neither a crash nor a power cut damages it; a bad disk or a hand does. The generation
// before is then believed only if it says committed: nothing is stronger, and a machine that keeps a cluster too long loses
// nothing. "Free" and "claimed" are not believed: what followed them may have been a commit, and to take such a machine for
// one that may be cleaned would destroy a member of a cluster.
func read(path string) (State, error) {
	var s State
	recovered, err := durable.Read(path, schema, &s)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return State{Phase: Free}, nil
	case errors.Is(err, durable.ErrSchema):
		return State{}, fmt.Errorf("read node lock: %w: another version of slipway wrote it: use that one, or a newer one", err)
	case errors.Is(err, durable.ErrDamaged):
		return State{}, damaged(path, err.Error())
	case err != nil:
		return State{}, fmt.Errorf("read node lock: %w", err)
	}
	if err := s.check(); err != nil {
		return State{}, damaged(path, err.Error())
	}
	if recovered && s.Phase != Committed {
		return State{}, damaged(path, "only the generation before is left, and it is too old to be believed: "+s.String())
	}
	return s, nil
}

func damaged(path, why string) error {
	return fmt.Errorf("read node lock: %s: %w: nobody can say whether this machine belongs to a cluster; it is left as it is. "+
		"If it belongs to none, remove %s and %s.prev and start the agent again: %s", path, durable.ErrDamaged, path, path, why)
}

// settleLocked gives the state to go on from. After a write that nobody knows the end of, what the disk says is written once
// more as a whole, and counts when that has worked.
func (l *Lock) settleLocked() (State, error) {
	s, err := read(l.path)
	if err != nil || !l.doubt {
		return s, err
	}
	if err := l.save(l.path, schema, s); err != nil {
		return s, fmt.Errorf("%w: %w", ErrInDoubt, err)
	}
	l.doubt = false
	return s, nil
}

// writeLocked makes next durable, or leaves old. The error says which of the two is true if that is known.
func (l *Lock) writeLocked(old, next State) error {
	err := l.save(l.path, schema, next)
	if err == nil {
		return nil
	}
	now, readErr := read(l.path)
	if readErr == nil && now == old {
		return fmt.Errorf("write node lock: it stays %s: %w", old, err)
	}
	// The new name is there and was not made durable. An fsync that failed once proves nothing the second time: write afresh.
	undo := readErr
	if undo == nil {
		undo = l.save(l.path, schema, old)
	}
	if undo == nil {
		return fmt.Errorf("write node lock: it stays %s: %w", old, err)
	}
	l.doubt = true
	return fmt.Errorf("write node lock: %w: %w; undo: %w", ErrInDoubt, err, undo)
}

// exclusive keeps other processes out while a step is taken. The journal is replaced at each step, so the lock is on a file of
// its own, which stays.
func exclusive(path string) (unlock func(), err error) {
	unlock, err = durable.LockFileBriefly(path + ".flock")
	if err != nil {
		return nil, fmt.Errorf("take hold of the node lock: %w", err)
	}
	return unlock, nil
}
