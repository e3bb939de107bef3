// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
)

// waitNoConnections waits until all connections are released.
func (s *testServer) waitNoConnections(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		unknown, known := s.count()
		if unknown == 0 && known == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("got %d connections of unknown and %d of known peers, want none", unknown, known)
		}
	}
}

func (s *testServer) count() (unknown, known int) {
	s.limiter.mu.Lock()
	defer s.limiter.mu.Unlock()
	sum := 0
	for _, r := range s.limiter.sources {
		sum, known = sum+r.unknown, known+r.known
	}
	if sum != s.limiter.unknown {
		panic("the rows do not add up to the total")
	}
	return sum, known
}

func TestSlowHandshakes(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		do   func(t *testing.T, c net.Conn)
		want string
	}{
		"silent":              {func(*testing.T, net.Conn) {}, "TLS handshake: not finished within"},
		"half a hello":        {func(t *testing.T, c net.Conn) { send(t, c, "\x16\x03\x01\x02\x00\x01") }, "TLS handshake: not finished within"},
		"garbage":             {func(t *testing.T, c net.Conn) { send(t, c, "GET / HTTP/1.1\r\n\r\n") }, "TLS handshake: tls: first record does not look like"},
		"silent after TLS":    {func(t *testing.T, c net.Conn) { handshake(t, c) }, "HTTP/2 preface: not finished within"},
		"half a preface":      {func(t *testing.T, c net.Conn) { send(t, handshake(t, c), preface[:20]) }, "HTTP/2 preface: not finished within"},
		"HTTP/1 inside":       {func(t *testing.T, c net.Conn) { send(t, handshake(t, c), "GET / HTTP/1.1\r\nHost: example\r\n\r\n") }, "HTTP/2 preface: got"},
		"preface, then quiet": {func(t *testing.T, c net.Conn) { send(t, handshake(t, c), preface) }, "HTTP/2 settings: not finished within"},
		"hello of 64 KiB": {func(t *testing.T, c net.Conn) {
			send(t, c, "\x16\x03\x01\x00\x64\x01\x01\x00\x40"+strings.Repeat("s", 96))
		}, "TLS handshake: tls: handshake message of length 65600 bytes exceeds maximum"},
		"gone": {func(_ *testing.T, c net.Conn) { c.Close() }, "TLS handshake: the client closed the connection"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Some cases finish the TLS handshake first: the limit must be longer than that takes on a busy machine.
			s := startServer(t, ServerOptions{Limits: Limits{Handshake: 3 * time.Second}}, AnyKey, joiner{}, initer{})
			conn := dialTCP(t, s.addr, "")
			c.do(t, conn)
			if name != "gone" {
				waitClosed(t, conn)
			}
			s.wait(t, c.want)
			s.waitNoConnections(t)
		})
	}
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

func handshake(t *testing.T, c net.Conn) net.Conn {
	t.Helper()
	conn := tls.Client(c, attackerTLS(t))
	if err := conn.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return conn
}

// The server closes idle connections, and those of unknown peers at their age limit.
func TestConnectionLimits(t *testing.T) {
	t.Parallel()
	const limit = 2 * time.Second // longer than a busy machine needs for the first call
	cases := map[string]struct {
		limits Limits
		want   string
	}{
		"idle": {Limits{Idle: limit}, ""},
		"old":  {Limits{Age: limit}, "older than 2s"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, ServerOptions{Limits: c.limits}, AnyKey, joiner{}, initer{})
			if _, err := initv1.NewInitClient(s.dial(t)).Facts(t.Context(), &initv1.FactsRequest{}); err != nil {
				t.Fatal(err)
			}
			s.waitNoConnections(t)
			if c.want == "" {
				if s.len() > 0 {
					t.Errorf("closing an idle connection was audited: %+v", s.all)
				}
				return
			}
			if r := s.wait(t, c.want); r.Code != codes.DeadlineExceeded {
				t.Errorf("audit: %+v", r)
			}
		})
	}
}

// A call may finish after the age limit of its connection.
func TestAgeLimitLetsCallFinish(t *testing.T) {
	t.Parallel()
	age := 2 * time.Second // longer than a busy machine needs to start the call
	s := startServer(t, ServerOptions{Limits: Limits{Age: age, Call: time.Minute}}, AnyKey, joiner{},
		initer{init: func(ctx context.Context, _ *initv1.InitRequest) (*initv1.InitReply, error) {
			old := time.NewTimer(age + 100*time.Millisecond) // past the age limit
			defer old.Stop()
			select {
			case <-old.C:
				return &initv1.InitReply{}, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}})
	if err := initOnce(t, s, nil); err != nil {
		t.Errorf("the call was interrupted: %v", err)
	}
}

// Stop does not wait for slow handshakes.
func TestStopEndsHandshakes(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*Server){"at once": (*Server).Stop, "gracefully": (*Server).GracefulStop} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, ServerOptions{Limits: Limits{Handshake: time.Minute}}, AnyKey, joiner{}, initer{})
			silent, shaken, prefaced := dialTCP(t, s.addr, ""), dialTCP(t, s.addr, ""), dialTCP(t, s.addr, "")
			handshake(t, shaken)
			send(t, handshake(t, prefaced), preface)
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for unknown := 0; unknown < 3; unknown, _ = s.count() {
				<-tick.C
			}
			stop(s.Server)
			for _, c := range []net.Conn{silent, shaken, prefaced} {
				waitClosed(t, c)
			}
			s.waitNoConnections(t)
		})
	}
}

// Frames that a gRPC client would never send.
func TestHostileFrames(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		do     func(*testing.T, *frameClient) outcome
		status string // gRPC's code
		http   string
		reset  http2.ErrCode
		reason string // "": gRPC itself refuses, before allowAll can see it
	}{
		"name without slash":  {calls("Join"), "12", "200", 0, "malformed method name"},
		"name with one slash": {calls("/Join"), "12", "200", 0, "malformed method name"},
		"empty name":          {calls(""), "12", "200", 0, "malformed method name"},
		"unknown service":     {calls("/x.Y/Z"), "7", "200", 0, "no authorization rule"},
		"unknown method":      {calls("/slipway.join.v1.Join/Leave"), "7", "200", 0, "no authorization rule"},
		"trailing slash":      {calls(methodJoin + "/"), "7", "200", 0, "no authorization rule"},
		"other case":          {calls("/slipway.join.v1.join/join"), "7", "200", 0, "no authorization rule"},
		"escaped":             {calls("/slipway.join.v1.Join%2fJoin/x"), "7", "200", 0, "no authorization rule"},
		"rule, not served":    {calls("/ruled.But/Missing"), "12", "200", 0, "not served"},
		"long name":           {calls("/x/" + strings.Repeat("y", 9000)), "7", "200", 0, "no authorization rule"},
		"reflection":          {calls("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"), "7", "200", 0, "no authorization rule"},
		"health":              {calls("/grpc.health.v1.Health/Check"), "7", "200", 0, "no authorization rule"},
		"channelz":            {calls("/grpc.channelz.v1.Channelz/GetServers"), "7", "200", 0, "no authorization rule"},
		"wrong content type":  {calls(methodJoin, hpack.HeaderField{Name: "content-type", Value: "application/json"}), "3", "415", 0, ""},
		"GET":                 {calls(methodJoin, hpack.HeaderField{Name: ":method", Value: "GET"}), "13", "405", 0, ""},
		"large headers":       {calls(methodJoin, repeated(hpack.HeaderField{Name: "x", Value: strings.Repeat("y", 1000)}, 17)...), "", "", http2.ErrCodeFrameSize, ""},
		"compressed":          {calls(methodFacts, hpack.HeaderField{Name: "grpc-encoding", Value: "gzip"}), "12", "200", 0, ""},
		"no message, unary":   {calls(methodFacts), "13", "200", 0, "receive a message"},
		"two messages, unary": {func(t *testing.T, w *frameClient) outcome {
			id := begin(t, w, methodFacts)
			write(t, w, id, true, append(message(0, nil), message(0, nil)...))
			return w.wait(t, id)
		}, "13", "200", 0, "receive a message"},
		"length of 4 GiB": {func(t *testing.T, w *frameClient) outcome {
			id := begin(t, w, methodFacts)
			write(t, w, id, false, message(0xffffffff, nil))
			return w.wait(t, id)
		}, "8", "200", 0, "larger than max"},
		"no protobuf": {func(t *testing.T, w *frameClient) outcome {
			id := begin(t, w, methodInit)
			write(t, w, id, true, message(3, []byte("\xff\xff\xff")))
			return w.wait(t, id)
		}, "13", "200", 0, "receive a message"},
		"body that never comes": {func(t *testing.T, w *frameClient) outcome {
			id := begin(t, w, methodFacts)
			write(t, w, id, false, message(1000, []byte("x")))
			return w.wait(t, id)
		}, "4", "200", 0, "not finished within"},
		"refused before its body": {func(t *testing.T, w *frameClient) outcome { return w.wait(t, begin(t, w, methodWatch)) }, "16", "200", 0, "wrong secret"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, ServerOptions{
				Timeout: map[string]time.Duration{methodFacts: 200 * time.Millisecond},
				Authorize: map[string]func(context.Context, Peer) error{
					methodJoin: allowAll, methodFacts: allowAll, methodInit: allowAll, "/ruled.But/Missing": allowAll,
					methodWatch: deny(codes.Unauthenticated, "wrong secret", ""),
				},
			}, AnyKey, joiner{join: readAll}, initer{init: func(context.Context, *initv1.InitRequest) (*initv1.InitReply, error) { return nil, nil }})
			a := c.do(t, dialFrames(t, s))
			if a.fields["grpc-status"] != c.status || a.fields[":status"] != c.http || a.reset != c.reset {
				t.Errorf("got %v, want gRPC %s, HTTP %s, reset %v", a, c.status, c.http, c.reset)
			}
			if c.reason == "" {
				return
			}
			r := s.wait(t, c.reason)
			// gRPC itself answers if it cannot read a name or a message.
			own := c.reason == "malformed method name" || c.reason == "receive a message" || c.reason == "larger than max"
			if !own && !strings.Contains(a.fields["grpc-message"], r.ID) {
				t.Errorf("client got %q, want the id %s in it", a.fields["grpc-message"], r.ID)
			}
			if len(r.Method) > 200 {
				t.Errorf("audit has %d bytes of a method name, want at most 200", len(r.Method))
			}
		})
	}
}

func calls(path string, fields ...hpack.HeaderField) func(*testing.T, *frameClient) outcome {
	return func(t *testing.T, w *frameClient) outcome {
		id, err := w.call(path, true, fields...)
		if err != nil {
			t.Fatal(err)
		}
		return w.wait(t, id)
	}
}

func begin(t *testing.T, w *frameClient, method string) uint32 {
	t.Helper()
	id, err := w.call(method, false)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func write(t *testing.T, w *frameClient, id uint32, end bool, b []byte) {
	t.Helper()
	if err := w.WriteData(id, end, b); err != nil {
		t.Fatal(err)
	}
}

// Calls that are cancelled at once neither pile up nor block a good call.
func TestRapidReset(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	running, most := 0, 0
	s := startServer(t, ServerOptions{Limits: Limits{Calls: Rate{1e6, 1e6}}}, AnyKey, joiner{join: func(stream joinStream) error {
		mu.Lock()
		running++
		most = max(most, running)
		mu.Unlock()
		<-stream.Context().Done()
		mu.Lock()
		running--
		mu.Unlock()
		return nil
	}}, initer{})
	w := dialFrames(t, s)
	go func() {
		for {
			if _, err := w.ReadFrame(); err != nil {
				return
			}
		}
	}()
	for range 5000 {
		id := begin(t, w, methodJoin)
		if err := w.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := initv1.NewInitClient(s.dial(t)).Facts(t.Context(), &initv1.FactsRequest{}); err != nil {
		t.Error(err)
	}
	w.conn.Close()
	mu.Lock()
	defer mu.Unlock()
	if most > 16 {
		t.Errorf("got %d concurrent handlers on one connection, want at most 16", most)
	}
}

// Calls beyond the limit of a connection are refused without running a handler.
func TestTooManyStreams(t *testing.T) {
	t.Parallel()
	s := startServer(t, ServerOptions{}, AnyKey, joiner{join: readAll}, initer{})
	w := dialFrames(t, s)
	var last uint32
	for range 17 {
		last = begin(t, w, methodJoin)
	}
	if a := w.wait(t, last); a.reset != http2.ErrCodeRefusedStream {
		t.Errorf("17th call: got %+v, want REFUSED_STREAM", a)
	}
}

// A refused call leaks no timer, however long its deadline is.
func TestRefusedCallsLeakNothing(t *testing.T) {
	t.Parallel()
	s := startServer(t, ServerOptions{Limits: Limits{Calls: Rate{0.001, 1}}}, AnyKey, joiner{}, initer{})
	w := dialFrames(t, s)
	for _, path := range []string{"x", "/x/y", methodFacts} {
		id, err := w.call(path, true, hpack.HeaderField{Name: "grpc-timeout", Value: "99999999H"})
		if err != nil {
			t.Fatal(err)
		}
		if a := w.wait(t, id); a.fields["grpc-status"] == "0" {
			t.Errorf("call %q: got %v, want an error", path, a)
		}
	}
	s.wait(t, "malformed method name")
	s.wait(t, "calls per second")
}
