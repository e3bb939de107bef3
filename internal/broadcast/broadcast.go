// SPDX-License-Identifier: Apache-2.0

// Package broadcast wakes all goroutines that wait for a change of some state.
//
// Read [Signal]. Get the channel before, or under the same lock as, reading the state. Then no change between reading and waiting is missed:
//
//	for {
//		changed := s.changed.Wait()
//		if s.done() {
//			return
//		}
//		select {
//		case <-changed:
//		case <-ctx.Done():
//		}
//	}
package broadcast

import "sync"

// Signal is safe for concurrent use. The zero value is ready to use. It must not be copied after the first use.
type Signal struct {
	mu sync.Mutex    // guards the field below
	c  chan struct{} // nil while there is no waiter
}

// Wait returns a channel that the next Notify closes.
func (s *Signal) Wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.c == nil {
		s.c = make(chan struct{})
	}
	return s.c
}

// Notify wakes everything that waits on a channel from Wait. It never blocks.
func (s *Signal) Notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.c != nil {
		close(s.c)
		s.c = nil
	}
}
