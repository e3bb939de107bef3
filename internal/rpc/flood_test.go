// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
)

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Not parallel: it measures the whole process.
func TestFloodLeavesNothing(t *testing.T) {
	refuse := both(deny(codes.PermissionDenied, "unknown machine", ""))
	s := open(t, ServerOptions{Authorize: refuse, Limits: Limits{Connections: Rate{1e6, 1e6}, ConnectionsAll: Rate{1e6, 1e6}}, Audit: func(Refused) {}}, AnyKey, joiner{}, initer{})
	memory, goroutines := heap(), runtime.NumGoroutine()
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 100 {
				conn, err := from("127.0.0.66")(t.Context(), s.addr)
				if err != nil {
					continue
				}
				_, _ = io.WriteString(conn, strings.Repeat("\x16\x03\x01garbage", 100))
				conn.Close()
			}
			_, cert := identity(t)
			conn, err := Dial(s.addr, ClientOptions{Pin: s.pin, Certificate: cert})
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = conn.Close() }()
			for range 200 {
				_, err := initv1.NewInitClient(conn).Init(t.Context(), &initv1.InitRequest{Ticket: make([]byte, 1<<19)})
				if code := status.Code(err); code != codes.PermissionDenied && code != codes.ResourceExhausted {
					t.Errorf("a call of the flood: %v", err)
				}
			}
		})
	}
	group.Wait()
	s.empty(t)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); runtime.NumGoroutine() > goroutines+4; <-tick.C {
		if time.Since(began) > 10*time.Second {
			t.Fatalf("%d goroutines became %d", goroutines, runtime.NumGoroutine())
		}
	}
	if grown := heap() - memory; grown > 4<<20 {
		t.Errorf("the flood left %d bytes", grown)
	}
}

// One source makes a thousand bad requests a second; another one's call is answered, and soon.
func TestGoodCallDuringAFlood(t *testing.T) {
	t.Parallel()
	s := open(t, ServerOptions{Audit: func(Refused) {}}, AnyKey, joiner{}, initer{})
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			tick := time.NewTicker(4 * time.Millisecond)
			defer tick.Stop()
			for ctx.Err() == nil {
				<-tick.C
				if conn, err := from("127.0.0.66")(ctx, s.addr); err == nil {
					_, _ = io.WriteString(conn, "\x16\x03\x01\x00\x05bad!!")
					conn.Close()
				}
			}
		})
	}
	for range 5 {
		_, cert := identity(t)
		conn := dialWith(t, s.addr, ClientOptions{Pin: s.pin, Certificate: cert, Dialer: from("127.0.0.77")})
		began := time.Now()
		if _, err := initv1.NewInitClient(conn).Facts(t.Context(), &initv1.FactsRequest{}); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("a good call took %s", took)
		}
	}
	cancel()
	group.Wait()
}
