// SPDX-License-Identifier: Apache-2.0

package reconcile

// Down says that an item is ready no longer, by itself: a unit, whose Rose is sure to follow when it is up again. While the loop is
// at work on the item, the loop's own word counts; but an item that is down does not become ready, although the loop may just
// have seen it ready.
func (b *Board) Down(ref, reason, provider string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	down := Status{Ref: ref, Phase: Failing, Error: reason, Provider: provider}
	if b.items[ref].Phase == Ready || b.fallen[ref] {
		b.fallen[ref] = true
		b.setLocked(down)
		return
	}
	b.down[ref] = down
}

// Rose says that an item which was down has come back.
func (b *Board) Rose(ref string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.down, ref)
	if b.fallen[ref] {
		b.setLocked(Status{Ref: ref, Phase: Ready})
	}
}
