// SPDX-License-Identifier: Apache-2.0

package reconcile

import "context"

// Await blocks until the items are good enough, and calls waiting with the first that is not each time it is another. What is
// not on the board is not waited for: a plan's items are all announced before anybody works on them.
func (b *Board) Await(ctx context.Context, enough func(Phase) bool, refs []string, waiting func(ref string)) error {
	sub := b.Subscribe()
	defer sub.End()
	for last := ""; ; {
		missing := b.missing(enough, refs)
		if missing == "" {
			return nil
		}
		if missing != last {
			last = missing
			waiting(missing)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-sub.C:
			sub.Take()
		}
	}
}

// First is the first of the given items that is on the board, or else the last of them.
func (b *Board) First(refs ...string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ref := range refs {
		if _, known := b.items[ref]; known {
			return ref
		}
	}
	return refs[len(refs)-1]
}

// IsReady is enough for what builds on an item.
func IsReady(p Phase) bool { return p == Ready }

// IsBegun is enough for what can wait for the rest by itself: the loop has looked at the item and has done its step, so that
// what runs now is this plan's and no earlier one's.
func IsBegun(p Phase) bool { return p == Starting || p == Ready }

func (b *Board) missing(enough func(Phase) bool, refs []string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ref := range refs {
		if s, known := b.items[ref]; known && !enough(s.Phase) {
			return ref
		}
	}
	return ""
}

// Changed counts what somebody other than the loop has changed as a step, so that whoever asks what a run has done is told of
// it. It must be called before the item concerned becomes ready.
func (b *Board) Changed() int { return b.countStep() }
