// SPDX-License-Identifier: Apache-2.0

package joinserver_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/control/joinserver"
	"github.com/slipway-project/slipway/internal/rpc"
)

// A thousand bad requests a second from forty sources, half of them on connections that are kept, half on new ones: a good join
// still ends within a second of its usual time more often than not (a pause of this machine may meet one), and nothing is let in.
func TestGoodJoinsDuringAFlood(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seven seconds")
	}
	w := newWorld(t, rpc.Limits{})
	good := worker(w)
	usual := timeJoins(t, good, 5)

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	sent := flood(ctx, t, w, 1000)
	during := timeJoins(t, good, 8)
	cancel()
	n := sent()
	t.Logf("%d bad requests; good joins usually %v, during the flood %v", n, usual, during)
	for _, e := range w.audit() {
		if e.Node != "dev-worker-0" && (e.Reason == joinserver.Granted || e.Reason == joinserver.Certified) {
			t.Errorf("let in: %s", e)
		}
	}
	if n < 2000 {
		t.Skipf("the times are void: only %d bad requests were sent, this machine is too busy", n)
	}
	if took, before := during[len(during)/2], usual[len(usual)/2]; took > before+time.Second {
		t.Errorf("good joins took %s, usually %s", took, before)
	}
}

func timeJoins(t *testing.T, m *machine, n int) []time.Duration {
	t.Helper()
	var took []time.Duration
	pace := time.NewTicker(500 * time.Millisecond)
	defer pace.Stop()
	for range n {
		<-pace.C
		begun := time.Now()
		m.join(t)
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	return took
}

// flood begins so many bad requests a second; the result waits for the end and tells how many there were.
func flood(ctx context.Context, t *testing.T, w *world, rate int) (sent func() int64) {
	t.Helper()
	const sources = 40
	var count atomic.Int64
	var all sync.WaitGroup
	for i := range sources {
		m := w.machine(fmt.Sprintf("127.0.1.%d", i+1))
		all.Go(func() {
			tick := time.NewTicker(time.Second * sources / time.Duration(rate))
			defer tick.Stop()
			k := &flooder{machine: m}
			defer k.close()
			for n := 0; ; n++ {
				select {
				case <-tick.C:
				case <-ctx.Done():
					return
				}
				k.bad(ctx, n)
				count.Add(1)
			}
		})
	}
	return func() int64 { all.Wait(); return count.Load() }
}
