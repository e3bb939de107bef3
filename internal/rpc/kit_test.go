// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/core/pin"
)

// No test may leak a goroutine: an unauthenticated client could leak it too.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	methodFacts = "/slipway.init.v1.Init/Facts"
	methodInit  = "/slipway.init.v1.Init/Init"
	methodWatch = "/slipway.init.v1.Init/Watch"
	methodJoin  = "/slipway.join.v1.Join/Join"
	methodSync  = "/slipway.join.v1.Join/Sync"
)

// auditLog records what is reported to Audit.
type auditLog struct {
	mu    sync.Mutex
	all   []Refused
	added chan struct{}
}

func newAuditLog() *auditLog { return &auditLog{added: make(chan struct{}, 1)} }

func (b *auditLog) add(r Refused) {
	b.mu.Lock()
	b.all = append(b.all, r)
	b.mu.Unlock()
	select {
	case b.added <- struct{}{}:
	default:
	}
}

// wait returns the first refusal whose reason contains all words.
func (b *auditLog) wait(t *testing.T, words ...string) Refused {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		b.mu.Lock()
		for _, r := range b.all {
			if containsAll(r.Reason, words) {
				b.mu.Unlock()
				return r
			}
		}
		seen := append([]Refused(nil), b.all...)
		b.mu.Unlock()
		select {
		case <-b.added:
		case <-ctx.Done():
			t.Fatalf("no refusal contains %q; audit: %+v", words, seen)
		}
	}
}

func (b *auditLog) len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.all)
}

func containsAll(s string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(s, w) {
			return false
		}
	}
	return true
}

// joiner is a service whose methods are the functions in its fields.
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
	return &initv1.FactsReply{Facts: []byte(p.Addr.String()), Slipway: string(p.Key), Lock: string(hexed(exported))}, err
}

func hexed(b []byte) []byte {
	const digits = "0123456789abcdef"
	var out []byte
	for _, c := range b {
		out = append(out, digits[c>>4], digits[c&15])
	}
	return out
}

// testServer is a server on loopback with its audit log.
type testServer struct {
	*Server
	*auditLog
	addr string
	pin  pin.Pin // of the server's key
}

func allowAll(context.Context, Peer) error { return nil }

// startServer starts a server. Unless o says otherwise, everyone may call its five methods.
func startServer(t testing.TB, o ServerOptions, clients ClientAuth, j joiner, i initer) *testServer {
	t.Helper()
	key, cert := identity(t)
	if o.TLS == nil {
		o.TLS = ServerTLS(func() (*tls.Certificate, error) { return cert, nil }, clients)
	}
	if o.Authorize == nil {
		o.Authorize = map[string]func(context.Context, Peer) error{
			methodFacts: allowAll, methodInit: allowAll, methodWatch: allowAll, methodJoin: allowAll, methodSync: allowAll,
		}
	}
	s := &testServer{auditLog: newAuditLog(), pin: pinOf(t, key)}
	if o.Audit == nil {
		o.Audit = s.add
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

func pinOf(t testing.TB, key *ecdsa.PrivateKey) pin.Pin {
	t.Helper()
	p, err := pin.OfKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// dial connects with a new client key.
func (s *testServer) dial(t testing.TB) *grpc.ClientConn {
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
		t.Errorf("client got %v, want code %s", err, code)
	}
	if id != "" && !strings.Contains(status.Convert(err).Message(), id) {
		t.Errorf("client got %q, want the id %s in it", status.Convert(err).Message(), id)
	}
}

// attackerTLS is the TLS configuration of a client that accepts every server. Tests change one field of it.
func attackerTLS(t testing.TB) *tls.Config {
	t.Helper()
	_, cert := identity(t)
	return &tls.Config{
		InsecureSkipVerify: true, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS10,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil },
	}
}

func dialTCP(t testing.TB, addr, from string) net.Conn {
	t.Helper()
	d := net.Dialer{}
	if from != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	c, err := d.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// dialTLS connects and finishes the client's side of the handshake. The server may still refuse: in TLS 1.3 the client finishes
// first.
func dialTLS(t testing.TB, addr string, c *tls.Config) (*tls.Conn, error) {
	t.Helper()
	conn := tls.Client(dialTCP(t, addr, ""), c)
	return conn, conn.HandshakeContext(t.Context())
}

// waitClosed reads until the server closes the connection.
func waitClosed(t testing.TB, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	_, err := io.Copy(io.Discard, c)
	var wait net.Error
	if errors.As(err, &wait) && wait.Timeout() {
		t.Error("the server did not close the connection")
	}
}

// frameClient is a client that writes single HTTP/2 frames.
type frameClient struct {
	*http2.Framer
	conn net.Conn
	next uint32
	buf  bytes.Buffer
	enc  *hpack.Encoder
}

func dialFrames(t testing.TB, s *testServer) *frameClient {
	t.Helper()
	conn, err := dialTLS(t, s.addr, attackerTLS(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	w := &frameClient{Framer: http2.NewFramer(conn, conn), conn: conn, next: 1}
	w.enc = hpack.NewEncoder(&w.buf)
	w.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := w.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return w
}

// call sends the headers of a call. Each field replaces the default of the same name or is added.
func (w *frameClient) call(path string, end bool, fields ...hpack.HeaderField) (uint32, error) {
	usual := []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "https"},
		{Name: ":path", Value: path},
		{Name: ":authority", Value: "x"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	}
	for _, f := range fields {
		for i := range 6 {
			if usual[i].Name == f.Name {
				usual[i].Value, f.Name = f.Value, ""
			}
		}
		if f.Name != "" {
			usual = append(usual, f)
		}
	}
	w.buf.Reset()
	for _, f := range usual {
		if err := w.enc.WriteField(f); err != nil {
			return 0, err
		}
	}
	id := w.next
	w.next += 2
	block, first := w.buf.Bytes(), true
	for first || len(block) > 0 {
		n := min(len(block), 16<<10)
		var err error
		if first {
			err = w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:n], EndStream: end, EndHeaders: n == len(block)})
		} else {
			err = w.WriteContinuation(id, n == len(block), block[:n])
		}
		if err != nil {
			return 0, err
		}
		block, first = block[n:], false
	}
	return id, nil
}

// message is a gRPC message with n in its length field.
func message(n int, body []byte) []byte {
	return append([]byte{0, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, body...)
}

// outcome tells how a call ended: its last headers, or the code of a reset.
type outcome struct {
	fields map[string]string
	reset  http2.ErrCode
}

// wait reads frames until the call ends.
func (w *frameClient) wait(t testing.TB, id uint32) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { w.conn.Close() })
	defer stop()
	a := outcome{fields: map[string]string{}}
	for {
		f, err := w.ReadFrame()
		if err != nil {
			t.Fatalf("read the response to call %d: %v", id, err)
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = w.WriteSettingsAck()
			}
		case *http2.PingFrame:
			_ = w.WritePing(true, f.Data)
		case *http2.RSTStreamFrame:
			if f.StreamID == id {
				a.reset = f.ErrCode
				return a
			}
		case *http2.MetaHeadersFrame:
			if f.StreamID != id {
				continue
			}
			for _, h := range f.Fields {
				a.fields[h.Name] = h.Value
			}
			if f.StreamEnded() {
				return a
			}
		}
	}
}
