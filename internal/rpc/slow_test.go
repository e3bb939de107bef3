// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
)

// empty waits until the server has no connection any more; it fails when one stays.
func (s *site) empty(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		strangers, known := s.count()
		if strangers == 0 && known == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%d strangers' and %d known connections are left", strangers, known)
		}
	}
}

func (s *site) count() (strangers, known int) {
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	sum := 0
	for _, r := range s.gate.sources {
		sum, known = sum+r.strangers, known+r.known
	}
	if sum != s.gate.strangers {
		panic("the gate's sums differ")
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
		"half a hello":        {func(t *testing.T, c net.Conn) { say(t, c, "\x16\x03\x01\x02\x00\x01") }, "TLS handshake: not finished within"},
		"garbage":             {func(t *testing.T, c net.Conn) { say(t, c, "GET / HTTP/1.1\r\n\r\n") }, "TLS handshake: tls: first record does not look like"},
		"silent after TLS":    {func(t *testing.T, c net.Conn) { shake(t, c) }, "HTTP/2 preface: not finished within"},
		"half a preface":      {func(t *testing.T, c net.Conn) { say(t, shake(t, c), preface[:20]) }, "HTTP/2 preface: not finished within"},
		"HTTP/1 inside":       {func(t *testing.T, c net.Conn) { say(t, shake(t, c), "GET / HTTP/1.1\r\nHost: example\r\n\r\n") }, "HTTP/2 preface: it is"},
		"preface, then quiet": {func(t *testing.T, c net.Conn) { say(t, shake(t, c), preface) }, "HTTP/2 settings: not finished within"},
		"hello of 64 KiB": {func(t *testing.T, c net.Conn) {
			say(t, c, "\x16\x03\x01\x00\x64\x01\x01\x00\x40"+strings.Repeat("s", 96))
		}, "TLS handshake: tls: handshake message of length 65600 bytes exceeds maximum"},
		"gone": {func(_ *testing.T, c net.Conn) { c.Close() }, "TLS handshake: the client went away"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Some get past TLS first: the limit is longer than a busy machine takes for that.
			s := open(t, ServerOptions{Limits: Limits{Handshake: 3 * time.Second}}, AnyKey, joiner{}, initer{})
			conn := dialTCP(t, s.addr, "")
			c.do(t, conn)
			if name != "gone" {
				closed(t, conn)
			}
			s.wait(t, c.want)
			s.empty(t)
		})
	}
}

func say(t *testing.T, c net.Conn, words string) {
	t.Helper()
	if _, err := io.WriteString(c, words); err != nil {
		t.Fatal(err)
	}
}

func shake(t *testing.T, c net.Conn) net.Conn {
	t.Helper()
	conn := tls.Client(c, hostile(t))
	if err := conn.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return conn
}

// A connection without a call, and one of a stranger whatever it does, end by themselves.
func TestConnectionsEnd(t *testing.T) {
	t.Parallel()
	const limit = 2 * time.Second // longer than a busy machine takes from the connection to the first answer
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
			s := open(t, ServerOptions{Limits: c.limits}, AnyKey, joiner{}, initer{})
			if _, err := initv1.NewInitClient(s.dial(t)).Facts(t.Context(), &initv1.FactsRequest{}); err != nil {
				t.Fatal(err)
			}
			s.empty(t)
			if c.want == "" {
				if s.len() > 0 {
					t.Errorf("an idle connection's end was audited: %+v", s.all)
				}
				return
			}
			if r := s.wait(t, c.want); r.Code != codes.DeadlineExceeded {
				t.Errorf("audit: %+v", r)
			}
		})
	}
}

// A call that began while its connection was young may end, though the connection is old by then.
func TestOldConnectionEndsItsCall(t *testing.T) {
	t.Parallel()
	age := 2 * time.Second // longer than a busy machine takes from the connection to the call
	s := open(t, ServerOptions{Limits: Limits{Age: age, Call: time.Minute}}, AnyKey, joiner{},
		initer{init: func(ctx context.Context, _ *initv1.InitRequest) (*initv1.InitReply, error) {
			old := time.NewTimer(age + 100*time.Millisecond) // the connection is older than its call
			defer old.Stop()
			select {
			case <-old.C:
				return &initv1.InitReply{}, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}})
	if err := initOnce(t, s, nil); err != nil {
		t.Errorf("the call was cut off: %v", err)
	}
}

// Stop does not wait for those who are slow.
func TestStopEndsHandshakes(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*Server){"at once": (*Server).Stop, "gracefully": (*Server).GracefulStop} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, ServerOptions{Limits: Limits{Handshake: time.Minute}}, AnyKey, joiner{}, initer{})
			silent, shaken, prefaced := dialTCP(t, s.addr, ""), dialTCP(t, s.addr, ""), dialTCP(t, s.addr, "")
			shake(t, shaken)
			say(t, shake(t, prefaced), preface)
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for strangers := 0; strangers < 3; strangers, _ = s.count() {
				<-tick.C
			}
			stop(s.Server)
			for _, c := range []net.Conn{silent, shaken, prefaced} {
				closed(t, c)
			}
			s.empty(t)
		})
	}
}
