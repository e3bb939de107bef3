// SPDX-License-Identifier: Apache-2.0

package reconcile

// Fell says that an item which was ready is so no longer, by itself: a unit has died or fails its probe. While the loop is at
// work on an item, the loop's own word counts.
func (b *Board) Fell(ref, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if old := b.items[ref]; old.Phase == Ready || b.fallen[ref] {
		b.fallen[ref] = true
		b.setLocked(Status{Ref: ref, Phase: Failing, Error: reason, Provider: "its supervisor starts it again"})
	}
}

// Rose says that an item which fell has come back.
func (b *Board) Rose(ref string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fallen[ref] {
		b.setLocked(Status{Ref: ref, Phase: Ready})
	}
}
