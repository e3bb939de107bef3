// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/core/roster"
)

const (
	methodFacts = "/slipway.init.v1.Init/Facts"
	methodInit  = "/slipway.init.v1.Init/Init"
	methodWatch = "/slipway.init.v1.Init/Watch"
	methodJoin  = "/slipway.join.v1.Join/Join"
	methodSync  = "/slipway.join.v1.Join/Sync"
)

// book keeps what Audit hears.
type book struct {
	mu   sync.Mutex
	all  []Refused
	news chan struct{}
}

func newBook() *book { return &book{news: make(chan struct{}, 1)} }

func (b *book) hear(r Refused) {
	b.mu.Lock()
	b.all = append(b.all, r)
	b.mu.Unlock()
	select {
	case b.news <- struct{}{}:
	default:
	}
}

// wait returns the first refusal whose reason holds all words.
func (b *book) wait(t *testing.T, words ...string) Refused {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		b.mu.Lock()
		for _, r := range b.all {
			if holds(r.Reason, words) {
				b.mu.Unlock()
				return r
			}
		}
		heard := append([]Refused(nil), b.all...)
		b.mu.Unlock()
		select {
		case <-b.news:
		case <-ctx.Done():
			t.Fatalf("nobody was refused for %q; audit: %+v", words, heard)
		}
	}
}

func (b *book) len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.all)
}

func holds(s string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(s, w) {
			return false
		}
	}
	return true
}

// joiner is the tiny service: each method is a func, or unimplemented.
type joiner struct {
	joinv1.UnimplementedJoinServer
	join func(grpc.BidiStreamingServer[joinv1.JoinRequest, joinv1.JoinReply]) error
	sync func(grpc.BidiStreamingServer[joinv1.SyncRequest, joinv1.SyncReply]) error
}

func (j joiner) Join(s grpc.BidiStreamingServer[joinv1.JoinRequest, joinv1.JoinReply]) error {
	return j.join(s)
}

func (j joiner) Sync(s grpc.BidiStreamingServer[joinv1.SyncRequest, joinv1.SyncReply]) error {
	return j.sync(s)
}

type initer struct {
	initv1.UnimplementedInitServer
	init func(context.Context, *initv1.InitRequest) (*initv1.InitReply, error)
}

func (i initer) Init(ctx context.Context, r *initv1.InitRequest) (*initv1.InitReply, error) {
	return i.init(ctx, r)
}

func (i initer) Facts(ctx context.Context, _ *initv1.FactsRequest) (*initv1.FactsReply, error) {
	p, err := PeerFrom(ctx)
	if err != nil {
		return nil, err
	}
	exported, err := Exporter(ctx)
	return &initv1.FactsReply{Address: p.Addr.String(), Slipway: p.Key, Lock: string(hexed(exported))}, err
}

func hexed(b []byte) []byte {
	const digits = "0123456789abcdef"
	var out []byte
	for _, c := range b {
		out = append(out, digits[c>>4], digits[c&15])
	}
	return out
}

// site is a server on loopback with its book.
type site struct {
	*Server
	*book
	addr string
	pin  string // of its key
}

func anybody(context.Context, Peer) error { return nil }

// open starts a server whose five methods anybody may call, unless o says otherwise.
func open(t testing.TB, o ServerOptions, clients ClientAuth, j joiner, i initer) *site {
	t.Helper()
	key, cert := identity(t)
	if o.TLS == nil {
		o.TLS = ServerTLS(func() (*tls.Certificate, error) { return cert, nil }, clients)
	}
	if o.Authorize == nil {
		o.Authorize = map[string]func(context.Context, Peer) error{
			methodFacts: anybody, methodInit: anybody, methodWatch: anybody, methodJoin: anybody, methodSync: anybody,
		}
	}
	s := &site{book: newBook(), pin: pinOf(t, key)}
	if o.Audit == nil {
		o.Audit = s.hear
	}
	s.Server = NewServer(o)
	joinv1.RegisterJoinServer(s, j)
	initv1.RegisterInitServer(s, i)
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return s
}

func identity(t testing.TB) (*ecdsa.PrivateKey, *tls.Certificate) {
	t.Helper()
	key := certtest.Key(t)
	cert, err := SelfSigned(key, "machine", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return key, cert
}

func pinOf(t testing.TB, key *ecdsa.PrivateKey) string {
	t.Helper()
	pin, err := roster.PinOf(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return pin
}

// dial connects as a machine with a key of its own.
func (s *site) dial(t testing.TB) *grpc.ClientConn {
	t.Helper()
	_, cert := identity(t)
	return dialWith(t, s.addr, ClientOptions{Pin: s.pin, Certificate: cert})
}

func dialWith(t testing.TB, addr string, o ClientOptions) *grpc.ClientConn {
	t.Helper()
	conn, err := Dial(addr, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func wantStatus(t *testing.T, err error, code codes.Code, id string) {
	t.Helper()
	if status.Code(err) != code {
		t.Errorf("the client got %v, want code %s", err, code)
	}
	if id != "" && !strings.Contains(status.Convert(err).Message(), id) {
		t.Errorf("the client got %q, which does not name the id %s", status.Convert(err).Message(), id)
	}
}
