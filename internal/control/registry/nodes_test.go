// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/control/registry/registrytest"
	"github.com/slipway-project/slipway/internal/core/admission"
)

// slow returns each answer one second after it was read.
type slow struct{ registry.Store }

func (s slow) Get(ctx context.Context, kind, name string) (registry.Item, error) {
	item, err := s.Store.Get(ctx, kind, name)
	<-time.After(time.Second)
	return item, err
}

// A read after a write sees it, even while an earlier shared read is still running.
func TestSharedReadsAreFresh(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := registrytest.NewMemory()
		other := begun(t, store, time.Now)
		r := registry.New(slow{store}, time.Now)
		early := make(chan bool)
		go func() {
			n, err := r.Node(t.Context(), "dev-main-0")
			early <- err == nil && n.Removing
		}()
		synctest.Wait()
		if _, err := other.UpdateNode(t.Context(), "dev-main-0", func(n *admission.Node) error { n.Removing = true; return nil }); err != nil {
			t.Fatal(err)
		}
		go func() { <-early }()
		if n, err := r.Node(t.Context(), "dev-main-0"); err != nil || !n.Removing {
			t.Errorf("got %+v, %v, want the node as written before", n, err)
		}
	})
}
