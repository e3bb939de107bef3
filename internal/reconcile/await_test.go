// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

func TestAwait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := NewBoard()
		b.Set(Status{Ref: "a", Phase: Waiting})
		b.Set(Status{Ref: "b", Phase: Waiting})
		var told []string
		done := make(chan error, 1)
		go func() {
			done <- b.Await(t.Context(), IsReady, []string{"a", "b", "nobody has announced it"}, func(ref string) { told = append(told, ref) })
		}()
		synctest.Wait()
		b.Set(Status{Ref: "a", Phase: Starting})
		synctest.Wait()
		b.Set(Status{Ref: "a", Phase: Ready})
		synctest.Wait()
		if len(done) != 0 {
			t.Fatal("it did not wait for b")
		}
		b.Set(Status{Ref: "b", Phase: Ready})
		if err := <-done; err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]string{"a", "b"}, told); diff != "" {
			t.Errorf("waited for (-want +got):\n%s", diff)
		}

		for phase, begun := range map[Phase]bool{Waiting: false, Doing: false, Failing: false, Starting: true, Ready: true} {
			if IsBegun(phase) != begun {
				t.Errorf("%s is begun: %t", phase, !begun)
			}
		}
		b.Set(Status{Ref: "a", Phase: Failing})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := b.Await(ctx, IsReady, []string{"a"}, func(string) {}); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	})
}

func TestChangedCounts(t *testing.T) {
	t.Parallel()
	b := NewBoard()
	b.Changed()
	if _, steps := b.All(); steps != 1 {
		t.Errorf("%d steps, want 1", steps)
	}
}
