// SPDX-License-Identifier: Apache-2.0

package joinserver_test

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"net"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/node/joinclient"
	"github.com/slipway-project/slipway/internal/rpc"
)

// BenchmarkJoin1000 joins a thousand machines one after the other, each with a token and an address. It compares the time
// of one join with what it needs at least: a mutual TLS 1.3 handshake and one ECDSA signature. Run it with -benchtime 1x.
func BenchmarkJoin1000(b *testing.B) {
	const machines = 1000
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		w := newWorld(b, loose())
		all := newcomers(b, w, machines)
		handshake := bareHandshakes(b, w)
		var took, bares []time.Duration
		b.StartTimer()
		for i, m := range all {
			begun := time.Now()
			m.join(b)
			took = append(took, time.Since(begun))
			if i%4 == 0 { // in between, so that both run under the same load
				b.StopTimer()
				bares = append(bares, handshake())
				b.StartTimer()
			}
		}
		b.StopTimer()
		slices.Sort(took)
		slices.Sort(bares)
		p50, p99, bare := took[machines/2], took[machines*99/100], bares[len(bares)/2]
		b.ReportMetric(float64(p50.Microseconds()), "p50-µs")
		b.ReportMetric(float64(p99.Microseconds()), "p99-µs")
		b.ReportMetric(float64(bare.Microseconds()), "bare-µs")
		b.ReportMetric(float64(p50)/float64(bare), "ratio")
		b.StartTimer()
	}
}

// newcomers returns machines with a token and an address each. Their keys exist already: making keys is not the service's
// work.
func newcomers(b *testing.B, w *world, n int) []*machine {
	b.Helper()
	all := make([]*machine, n)
	for i := range all {
		all[i] = w.machine(fmt.Sprintf("127.1.%d.%d", i/250, i%250+1)).invited(registry.TokenSpec{Pool: "worker"})
		for _, want := range wantsOf(specNode("x", "worker", 0)) {
			if _, err := all[i].Request(want); err != nil {
				b.Fatal(err)
			}
		}
	}
	return all
}

// bareHandshakes returns a function that measures a connection with a mutual TLS 1.3 handshake, both sides in this
// process, and a signature.
func bareHandshakes(b *testing.B, w *world) func() time.Duration {
	b.Helper()
	server := w.serverCertificate(w.ca)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*server}, ClientAuth: tls.RequireAnyClientCert, SessionTicketsDisabled: true})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if c.(*tls.Conn).Handshake() == nil {
				_, _ = c.Write([]byte{1})
			}
			c.Close()
		}
	}()
	key := certtest.Key(b)
	client, err := rpc.SelfSigned(key, "x", time.Now())
	if err != nil {
		b.Fatal(err)
	}
	return func() time.Duration {
		begun := time.Now()
		shakeHands(b, l.Addr(), client, key)
		return time.Since(begun)
	}
}

func shakeHands(b *testing.B, to net.Addr, client *tls.Certificate, key *ecdsa.PrivateKey) {
	b.Helper()
	// The certificate is not verified, which would make the bare handshake slower and the ratio better.
	c, err := tls.Dial("tcp", to.String(), &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, Certificates: []tls.Certificate{*client}})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	digest := sha256.Sum256([]byte("x"))
	if _, err := ecdsa.SignASN1(rand.Reader, key, digest[:]); err != nil {
		b.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkStorm1000 joins a thousand machines at the same moment, as after a power cut. The time of one is from that
// moment to its certificates, including retries. Run it with -benchtime 1x. Machines and service share the process:
// peak-MiB is the memory of both, kept-KiB what remains for each machine after all have joined, mainly its record.
func BenchmarkStorm1000(b *testing.B) {
	const machines = 1000
	for b.Loop() {
		b.StopTimer()
		w := newWorld(b, loose())
		all := newcomers(b, w, machines)
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
	runtime.GC() // frees what finalizers have held
	return heapNow()
}

// watchHeap samples the heap every 5 ms until stop, which returns the maximum.
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
