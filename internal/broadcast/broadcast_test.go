// SPDX-License-Identifier: Apache-2.0

package broadcast_test

import (
	"sync"
	"testing"

	"github.com/slipway-project/slipway/internal/broadcast"
)

func TestNotifyWakesAllWaiters(t *testing.T) {
	t.Parallel()
	var s broadcast.Signal
	s.Notify() // without waiters it does nothing
	var wg sync.WaitGroup
	for range 10 {
		changed := s.Wait()
		wg.Go(func() { <-changed })
	}
	s.Notify()
	wg.Wait()
	select {
	case <-s.Wait():
		t.Error("a channel from after Notify is closed")
	default:
	}
}
