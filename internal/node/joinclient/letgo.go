// SPDX-License-Identifier: Apache-2.0

package joinclient

import (
	"context"
	"errors"
)

var errLeaving = errors.New("the node is being removed, and counts until the end of that: wait for slipway node remove")

// LetGo asks whether the cluster has let this node go. Only a join service of the cluster that says no to the node's key is a yes;
// without an answer it is an error.
func LetGo(ctx context.Context, c SyncConfig) (gone bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var denied, greeted, leaving bool
	c.Generation = func() uint64 { return 0 } // a node that is known gets a roster
	c.Roster = func([]byte) error {
		greeted = true
		cancel()
		return nil
	}
	last := Status{}
	c.Report = func(s Status) { last = s }
	s, err := NewSync(c)
	if err != nil {
		return false, err
	}
	s.denied = func() {
		denied = true
		cancel()
	}
	s.leaving = func() {
		leaving = true
		cancel()
	}
	err = s.Run(ctx)
	switch {
	case leaving:
		return false, errLeaving
	case denied:
		return true, nil
	case greeted:
		return false, nil
	case last.Detail != "":
		return false, errors.New(last.Detail)
	}
	return false, err
}
