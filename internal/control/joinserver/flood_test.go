// SPDX-License-Identifier: Apache-2.0

package joinserver_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/slipway-project/slipway/internal/control/joinserver"
	"github.com/slipway-project/slipway/internal/rpc"
	"github.com/slipway-project/slipway/internal/testkit"
)

// TestGoodJoinsDuringAFlood has forty sources send bad requests as fast as they are answered, half of them on
// connections that are kept, half on new ones. A join of a good machine ends before the service has dealt with
// five hundred of them more often than not, and no bad request succeeds. The measure is requests, not seconds: a slow
// machine slows both sides down.
func TestGoodJoinsDuringAFlood(t *testing.T) {
	const sources, joins, allowance = 40, 9, 500
	w := newWorld(t, rpc.Limits{})
	good := worker(w)
	good.join(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var bad atomic.Int64
	var flood sync.WaitGroup
	for i := range sources {
		k := &flooder{machine: w.machine(fmt.Sprintf("127.0.1.%d", i+1))}
		flood.Go(func() {
			defer k.close()
			for n := 0; ctx.Err() == nil; n++ {
				k.bad(ctx, n)
				bad.Add(1)
			}
		})
	}
	testkit.Eventually(t, "every source's first requests", func() bool { return bad.Load() > 5*sources })
	var during []int64 // bad requests during each good join
	for range joins {
		before := bad.Load()
		good.join(t)
		during = append(during, bad.Load()-before)
	}
	cancel()
	flood.Wait()
	slices.Sort(during)
	t.Logf("%d bad requests; during each of %d good joins: %v", bad.Load(), joins, during)
	if median := during[joins/2]; median > allowance {
		t.Errorf("a good join took as long as %d bad requests, want at most %d", median, allowance)
	}
	for _, e := range w.audit() {
		if e.Node != "dev-worker-0" && (e.Reason == joinserver.Granted || e.Reason == joinserver.Certified) {
			t.Errorf("a bad request succeeded: %s", e)
		}
	}
}
