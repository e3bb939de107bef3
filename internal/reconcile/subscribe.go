// SPDX-License-Identifier: Apache-2.0

package reconcile

// Subscription collects what changes on a board until its reader takes it. Of each item only the newest status is kept: a slow
// reader holds up nobody, costs no more than the board does, and never misses where an item has arrived.
type Subscription struct {
	C <-chan struct{} // has a value when there is something to take

	wake    chan struct{}
	board   *Board
	order   []string          // guarded by the board's mutex, as is the next
	changed map[string]Status // by Ref
}

// Subscribe begins to collect changes.
func (b *Board) Subscribe() *Subscription {
	wake := make(chan struct{}, 1)
	s := &Subscription{C: wake, wake: wake, board: b, changed: map[string]Status{}}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subs[s] = struct{}{}
	return s
}

// Take returns the changes since the last Take, the item that changed first first.
func (s *Subscription) Take() []Status {
	s.board.mu.Lock()
	defer s.board.mu.Unlock()
	out := make([]Status, 0, len(s.order))
	for _, ref := range s.order {
		out = append(out, s.changed[ref])
	}
	s.order = nil
	clear(s.changed)
	return out
}

// End stops collecting.
func (s *Subscription) End() {
	s.board.mu.Lock()
	defer s.board.mu.Unlock()
	delete(s.board.subs, s)
}

func (b *Board) tellLocked(status Status) {
	for s := range b.subs {
		if _, pending := s.changed[status.Ref]; !pending {
			s.order = append(s.order, status.Ref)
		}
		s.changed[status.Ref] = status
		select {
		case s.wake <- struct{}{}:
		default: // it has not read the last one yet
		}
	}
}
