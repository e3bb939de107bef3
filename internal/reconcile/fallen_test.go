// SPDX-License-Identifier: Apache-2.0

package reconcile

import "testing"

func TestFallenItem(t *testing.T) {
	t.Parallel()
	const ref = "unit/etcd"
	phase := func(b *Board) Phase {
		all, _ := b.All()
		return all[0].Phase
	}
	b := NewBoard()
	b.Set(Status{Ref: ref, Phase: Starting})
	b.Fell(ref, "exit code 1") // the loop is at work on it: its word counts
	if got := phase(b); got != Starting {
		t.Errorf("fell while starting: %s", got)
	}
	b.Set(Status{Ref: ref, Phase: Ready})
	b.Rose(ref)
	b.Fell(ref, "exit code 1")
	b.Fell(ref, "exit code 2")
	if all, _ := b.All(); all[0].Phase != Failing || all[0].Error != "exit code 2" {
		t.Errorf("fell twice: %+v", all[0])
	}
	b.Rose(ref)
	if got := phase(b); got != Ready {
		t.Errorf("came back: %s", got)
	}
	b.Fell(ref, "exit code 3")
	b.Reset()
	b.Set(Status{Ref: ref, Phase: Waiting})
	b.Rose(ref)
	if got := phase(b); got != Waiting {
		t.Errorf("a new run knows nothing of earlier falls: %s", got)
	}
}
