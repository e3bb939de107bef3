// SPDX-License-Identifier: Apache-2.0

package reconcile

// Fell says that an item which was ready is so no longer, by itself. While the loop is at work on an item, the loop's own word
// counts.
func (b *Board) Fell(ref, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.items[ref].Phase == Ready || b.fallen[ref] {
		b.fallLocked(Status{Ref: ref, Error: reason, Provider: "its supervisor starts it again"})
	}
}

// Down is Fell for what is sure to be followed by Rose when it is up again: a unit. An item that is down does not become ready,
// although the loop may just have seen it ready.
func (b *Board) Down(ref, reason, provider string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	down := Status{Ref: ref, Error: reason, Provider: provider}
	if b.items[ref].Phase == Ready || b.fallen[ref] {
		b.fallLocked(down)
		return
	}
	b.down[ref] = down
}

func (b *Board) fallLocked(s Status) {
	b.fallen[s.Ref] = true
	s.Phase = Failing
	b.setLocked(s)
}

// Rose says that an item which fell has come back.
func (b *Board) Rose(ref string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.down, ref)
	if b.fallen[ref] {
		b.setLocked(Status{Ref: ref, Phase: Ready})
	}
}
