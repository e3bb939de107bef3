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
	b.Down(ref, "exit code 1", "its supervisor") // the loop is at work on it: its word counts
	if got := phase(b); got != Starting {
		t.Errorf("fell while starting: %s", got)
	}
	b.Set(Status{Ref: ref, Phase: Ready})
	b.Rose(ref)
	b.Down(ref, "exit code 1", "its supervisor")
	b.Down(ref, "exit code 2", "its supervisor")
	if all, _ := b.All(); all[0].Phase != Failing || all[0].Error != "exit code 2" {
		t.Errorf("fell twice: %+v", all[0])
	}
	b.Rose(ref)
	if got := phase(b); got != Ready {
		t.Errorf("came back: %s", got)
	}
	b.Down(ref, "exit code 3", "its supervisor")
	b.Reset()
	b.Set(Status{Ref: ref, Phase: Waiting})
	b.Rose(ref)
	if got := phase(b); got != Waiting {
		t.Errorf("a new run knows nothing of earlier falls: %s", got)
	}
}

// A unit that dies between the moment at which the loop sees it ready and the one at which the loop says so is not ready.
func TestDownBeforeTheLoopSaysReady(t *testing.T) {
	t.Parallel()
	const ref = "unit/etcd"
	b := NewBoard()
	look := func(when string, want Phase) {
		t.Helper()
		if all, _ := b.All(); all[0].Phase != want {
			t.Errorf("%s: %+v, want %s", when, all[0], want)
		}
	}
	b.Set(Status{Ref: ref, Phase: Starting})
	b.Down(ref, "exit code 1", "its supervisor")
	look("while the loop is at work", Starting)
	b.Set(Status{Ref: ref, Phase: Ready})
	look("the loop is late", Failing)
	b.Rose(ref)
	look("it is up again", Ready)

	b.Set(Status{Ref: ref, Phase: Starting})
	b.Down(ref, "exit code 1", "its supervisor")
	b.Rose(ref)
	b.Set(Status{Ref: ref, Phase: Ready})
	look("it rose before the loop said so", Ready)

	b.Down(ref, "exit code 2", "its supervisor")
	look("it died later", Failing)
	b.Rose(ref)
	b.Set(Status{Ref: ref, Phase: Starting})
	b.Down(ref, "told to end", "its supervisor")
	b.Set(Status{Ref: ref, Phase: Doing})
	b.Set(Status{Ref: ref, Phase: Ready})
	look("a new step", Ready)
}
