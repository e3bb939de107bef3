// SPDX-License-Identifier: Apache-2.0

package joinclient_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/node/joinclient"
)

// syncService accepts streams at its endpoints. The test plays the server.
type syncService struct {
	streams chan *syncStream
	down    map[netip.AddrPort]error

	mu      sync.Mutex // guards the field below
	dialled []netip.AddrPort
}

type syncStream struct {
	at   netip.AddrPort
	ctx  context.Context //nolint:containedctx // a stream ends with its context
	in   chan *joinv1.SyncRequest
	out  chan *joinv1.SyncReply
	fail chan error
}

type syncConn struct {
	s  *syncService
	at netip.AddrPort
}

func (s *syncService) dial(_ context.Context, to netip.AddrPort) (joinclient.Conn, error) {
	s.mu.Lock()
	s.dialled = append(s.dialled, to)
	s.mu.Unlock()
	if err := s.down[to]; err != nil {
		return nil, err
	}
	return syncConn{s, to}, nil
}

func (c syncConn) Close() error { return nil }
func (c syncConn) Join(context.Context) (joinclient.JoinStream, error) {
	return nil, io.ErrUnexpectedEOF
}

func (c syncConn) Sync(ctx context.Context) (joinclient.SyncStream, error) {
	s := &syncStream{c.at, ctx, make(chan *joinv1.SyncRequest, 100), make(chan *joinv1.SyncReply, 100), make(chan error, 1)}
	c.s.streams <- s
	return s, nil
}

func (s *syncStream) Send(m *joinv1.SyncRequest) error {
	s.in <- m
	return nil
}

func (s *syncStream) Recv() (*joinv1.SyncReply, error) {
	select {
	case m := <-s.out:
		return m, nil
	case err := <-s.fail:
		return nil, err
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

// runSync runs a Sync until the test ends.
func runSync(t *testing.T, c *cluster, s *syncService, change func(*joinclient.SyncConfig), endpoints ...netip.AddrPort) *joinclient.Sync {
	t.Helper()
	s.streams = make(chan *syncStream, 100)
	config := joinclient.SyncConfig{
		Endpoints: func() []netip.AddrPort { return endpoints }, Pin: c.pin, Key: c.machine, Node: "n1", Slipway: "0.3.0",
		Generation: func() uint64 { return 7 }, Roster: func([]byte) error { return nil }, Log: slog.New(slog.DiscardHandler), Report: c.report,
		Dial: s.dial, Random: func(int) int { return 0 },
	}
	change(&config)
	run, err := joinclient.NewSync(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = run.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return run
}

func nothing(*joinclient.SyncConfig) {}

func TestSyncReconnects(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	synctest.Test(t, func(t *testing.T) {
		s := &syncService{}
		var rosters []string
		runSync(t, c, s, func(c *joinclient.SyncConfig) {
			c.Roster = func(text []byte) error {
				rosters = append(rosters, string(text))
				return errors.New("a bad roster does not end the stream")
			}
		}, at(1))
		for i := range 3 {
			stream := <-s.streams
			if hello := (<-stream.in).GetHello(); hello.GetNode() != "n1" || hello.GetCluster() != c.id || hello.GetGeneration() != 7 {
				t.Errorf("got hello %v", hello)
			}
			stream.out <- &joinv1.SyncReply{Message: &joinv1.SyncReply_Roster{Roster: []byte{byte('a' + i)}}}
			synctest.Wait()
			begun := time.Now()
			stream.fail <- status.Error(codes.Unavailable, "the server stops")
			synctest.Wait()
			if i == 0 {
				continue
			}
			if took := time.Since(begun); took > time.Second {
				t.Errorf("reconnected after %s, want at most 1s", took)
			}
		}
		if got := strings.Join(rosters, ""); got != "abc" {
			t.Errorf("got rosters %q, want abc", got)
		}
	})
}

// The node asks its own service first, and the others if that one is down.
func TestSyncAsksItselfFirst(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for name, tc := range map[string]struct {
		down map[netip.AddrPort]error
		own  bool
	}{
		"up":   {nil, true},
		"down": {map[netip.AddrPort]error{at(3): errors.New("connection refused")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &syncService{down: tc.down}
				runSync(t, c, s, func(c *joinclient.SyncConfig) {
					c.Own = func() netip.AddrPort { return at(3) }
				}, at(1), at(2), at(3))
				if stream := <-s.streams; (stream.at == at(3)) != tc.own {
					t.Errorf("got a stream to %s", stream.at)
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				if s.dialled[0] != at(3) || len(slices.Compact(slices.Clone(s.dialled))) > 2 {
					t.Errorf("dialled %v", s.dialled)
				}
			})
		})
	}
}

// A node that is refused keeps asking slowly and reports the reason.
func TestSyncRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	synctest.Test(t, func(t *testing.T) {
		s := &syncService{}
		runSync(t, c, s, nothing, at(1))
		begun, n := time.Now(), 0
		for time.Since(begun) < 10*time.Minute {
			stream := <-s.streams
			stream.fail <- status.Error(codes.PermissionDenied, "refused (id 12ab)")
			n++
		}
		if n < 10 || n > 20 {
			t.Errorf("asked %d times in ten minutes, want 10 to 20", n)
		}
		time.Sleep(time.Second) // fake time: the pause after the last refusal is longer
		said := c.said()
		if last := said[len(said)-1]; len(said) != 1 || last.What != "permission to stay in the cluster" || !strings.Contains(last.Detail, "12ab") {
			t.Errorf("got statuses %+v", said)
		}
	})
}

// A node without endpoints reports that, and connects as soon as it has one.
func TestSyncWithoutEndpoints(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	synctest.Test(t, func(t *testing.T) {
		var known atomic.Bool
		s := &syncService{}
		runSync(t, c, s, func(conf *joinclient.SyncConfig) {
			conf.Endpoints = func() []netip.AddrPort {
				if known.Load() {
					return []netip.AddrPort{at(1)}
				}
				return nil
			}
		})
		synctest.Wait()
		if said := c.said(); len(said) != 1 || said[0].What != "the address of a join service" || !strings.Contains(said[0].Who, "slipway up") {
			t.Errorf("got statuses %+v", said)
		}
		known.Store(true)
		begun := time.Now()
		<-s.streams
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("connected after %s, want at most 10s", took)
		}
	})
}

// A renewal is repeated on a new stream, is answered once, and fails with the reason of a refusal. A canceled one does not disturb
// the next one.
func TestRenew(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	csr, err := c.Request(kubeletWant())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]byte{"kubelet": csr}
	good := &joinv1.SyncReply{Message: &joinv1.SyncReply_Certificates{Certificates: &joinv1.Certificates{
		Certificates: map[string][]byte{"kubelet": pemOf(c.sign(c.kubelet.Public(), "system:node:n1", c.ca, false))},
	}}}
	synctest.Test(t, func(t *testing.T) {
		s := &syncService{}
		run := runSync(t, c, s, nothing, at(1))
		type answer struct {
			certificates map[string][]byte
			err          error
		}
		renew := func(ctx context.Context) <-chan answer {
			out := make(chan answer, 1)
			go func() { certificates, err := run.Renew(ctx, want); out <- answer{certificates, err} }()
			return out
		}
		asked := func(stream *syncStream) {
			t.Helper()
			for (<-stream.in).GetKeys() == nil {
			}
		}
		first := renew(t.Context())
		stream := <-s.streams
		asked(stream)
		stream.fail <- io.EOF
		stream = <-s.streams
		asked(stream) // repeated without another call
		stream.out <- good
		if a := <-first; a.err != nil || len(a.certificates["kubelet"]) == 0 {
			t.Errorf("renew: %v", a.err)
		}

		ctx, cancel := context.WithCancel(t.Context())
		gone := renew(ctx)
		asked(stream)
		cancel()
		if a := <-gone; !errors.Is(a.err, context.Canceled) {
			t.Errorf("canceled: got %v, want context.Canceled", a.err)
		}
		last := renew(t.Context())
		stream.out <- good // the answer to the canceled one
		asked(stream)
		stream.fail <- status.Error(codes.PermissionDenied, "refused (id 12ab)")
		if a := <-last; status.Code(a.err) != codes.PermissionDenied {
			t.Errorf("refused: got %v, want PermissionDenied", a.err)
		}
	})
}

// A control plane repeats its request: every two seconds, at once when its etcd has started, and on each new stream. A permit is passed
// on once.
func TestMember(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	synctest.Test(t, func(t *testing.T) {
		s := &syncService{}
		run := runSync(t, c, s, nothing, at(1))
		var started atomic.Bool
		var permits atomic.Int64
		done := make(chan error, 1)
		go func() {
			done <- run.Member(t.Context(), joinclient.Member{
				Started: started.Load,
				Permit:  func([]byte, bool) error { permits.Add(1); return nil },
			})
		}()
		member := func(stream *syncStream) *joinv1.Member {
			for {
				if m := (<-stream.in).GetMember(); m != nil {
					return m
				}
			}
		}
		permit := &joinv1.SyncReply{Message: &joinv1.SyncReply_Permit{Permit: &joinv1.Permit{Content: []byte("x")}}}
		stream := <-s.streams
		member(stream)
		begun := time.Now()
		member(stream)
		if again := time.Since(begun); again < time.Second || again > 3*time.Second {
			t.Errorf("repeated after %s, want 2s", again)
		}
		stream.out <- permit
		synctest.Wait()
		stream.fail <- io.EOF
		stream = <-s.streams
		member(stream)
		stream.out <- permit
		synctest.Wait()
		started.Store(true)
		begun = time.Now()
		if m := member(stream); !m.GetStarted() || time.Since(begun) > 100*time.Millisecond {
			t.Errorf("got started=%v after %s, want true within 100ms", m.GetStarted(), time.Since(begun))
		}
		stream.out <- &joinv1.SyncReply{Message: &joinv1.SyncReply_Promoted{Promoted: &joinv1.Promoted{}}}
		if err := <-done; err != nil || permits.Load() != 1 {
			t.Errorf("got %v after %d permits, want one permit", err, permits.Load())
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := run.Member(ctx, joinclient.Member{Started: func() bool { return true }}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		go func() {
			done <- run.Member(t.Context(), joinclient.Member{Started: func() bool { return true }, Permit: func([]byte, bool) error { return errors.New("no room") }})
		}()
		synctest.Wait()
		stream.out <- permit
		if err := <-done; err == nil || err.Error() != "no room" {
			t.Errorf("a permit that cannot be used: got %v, want no room", err)
		}
	})
}
