// SPDX-License-Identifier: Apache-2.0

package reconcile

import "context"

// Await blocks until the items are ready, and calls waiting with the first that is not each time it is another. What is not on
// the board is not waited for: a plan's items are all announced before anybody works on them.
func (b *Board) Await(ctx context.Context, refs []string, waiting func(ref string)) error {
	sub := b.Subscribe()
	defer sub.End()
	for last := ""; ; {
		missing := b.unready(refs)
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

func (b *Board) unready(refs []string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ref := range refs {
		if s, known := b.items[ref]; known && s.Phase != Ready {
			return ref
		}
	}
	return ""
}

// Changed counts what somebody other than the loop has changed as a step, so that whoever asks what a run has done is told of
// it. It must be called before the item concerned becomes ready.
func (b *Board) Changed() int { return b.countStep() }
