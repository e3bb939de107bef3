// SPDX-License-Identifier: Apache-2.0

package joinserver_test

import (
	"fmt"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/node/joinclient"
)

// BenchmarkStorm1000 lets a thousand machines in that all come at the same moment, as after a power cut. The time of one is from
// that moment to its certificates, its own tries included. Run it with -benchtime 1x. Machines and service share the process:
// peak-MiB is the memory of both, kept-KiB what stays for each machine when all are in, its record first of all.
func BenchmarkStorm1000(b *testing.B) {
	const machines = 1000
	for b.Loop() {
		b.StopTimer()
		w := newWorld(b, loose())
		all := make([]*machine, machines)
		for i := range all {
			all[i] = w.machine(fmt.Sprintf("127.2.%d.%d", i/250, i%250+1)).invited(registry.TokenSpec{Pool: "worker"})
			for _, want := range wantsOf(specNode("x", "worker", 0)) {
				if _, err := all[i].Request(want); err != nil {
					b.Fatal(err)
				}
			}
		}
		before := liveHeap()
		stop := watchHeap()
		b.StartTimer()
		took, total := storm(b, all)
		b.StopTimer()
		peak := stop()
		after := liveHeap()
		slices.Sort(took)
		b.ReportMetric(float64(took[machines/2].Milliseconds()), "p50-ms")
		b.ReportMetric(float64(took[machines*99/100].Milliseconds()), "p99-ms")
		b.ReportMetric(machines/total.Seconds(), "joins/s")
		b.ReportMetric(float64(peak)/(1<<20), "peak-MiB")
		b.ReportMetric(float64(max(after, before)-before)/machines/(1<<10), "kept-KiB")
		runtime.KeepAlive(all)
		b.StartTimer()
	}
}

func storm(b *testing.B, all []*machine) (took []time.Duration, total time.Duration) {
	b.Helper()
	took = make([]time.Duration, len(all))
	failed := make([]error, len(all))
	var joins sync.WaitGroup
	begun := time.Now()
	for i, m := range all {
		joins.Go(func() {
			_, failed[i] = joinclient.Join(b.Context(), m.config())
			took[i] = time.Since(begun)
		})
	}
	joins.Wait()
	total = time.Since(begun)
	for _, err := range failed {
		if err != nil {
			b.Fatal(err)
		}
	}
	return took, total
}

const heapObjects = "/memory/classes/heap/objects:bytes"

func heapNow() uint64 {
	sample := []metrics.Sample{{Name: heapObjects}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

func liveHeap() uint64 {
	runtime.GC()
	runtime.GC() // what finalizers hold goes only now
	return heapNow()
}

// watchHeap looks every 5 ms until stop, which returns the most that it has seen.
func watchHeap() (stop func() uint64) {
	end, most := make(chan struct{}), make(chan uint64)
	go func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		seen := heapNow()
		for {
			select {
			case <-tick.C:
				seen = max(seen, heapNow())
			case <-end:
				most <- seen
				return
			}
		}
	}()
	return func() uint64 {
		close(end)
		return <-most
	}
}
