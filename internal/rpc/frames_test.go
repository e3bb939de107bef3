// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
)

// Frame by frame: what a gRPC client would never send.
func TestHostileFrames(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		do     func(*testing.T, *wire) answer
		status string // gRPC's code
		http   string
		reset  http2.ErrCode
		reason string // "": gRPC itself refuses, before anybody can see it
	}{
		"name without slash":  {calls("Join"), "12", "200", 0, "no method's name"},
		"name with one slash": {calls("/Join"), "12", "200", 0, "no method's name"},
		"empty name":          {calls(""), "12", "200", 0, "no method's name"},
		"unknown service":     {calls("/x.Y/Z"), "7", "200", 0, "no rule"},
		"unknown method":      {calls("/slipway.join.v1.Join/Leave"), "7", "200", 0, "no rule"},
		"trailing slash":      {calls(methodJoin + "/"), "7", "200", 0, "no rule"},
		"other case":          {calls("/slipway.join.v1.join/join"), "7", "200", 0, "no rule"},
		"escaped":             {calls("/slipway.join.v1.Join%2fJoin/x"), "7", "200", 0, "no rule"},
		"rule, not served":    {calls("/ruled.But/Missing"), "12", "200", 0, "not served"},
		"long name":           {calls("/x/" + strings.Repeat("y", 9000)), "7", "200", 0, "no rule"},
		"reflection":          {calls("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"), "7", "200", 0, "no rule"},
		"health":              {calls("/grpc.health.v1.Health/Check"), "7", "200", 0, "no rule"},
		"channelz":            {calls("/grpc.channelz.v1.Channelz/GetServers"), "7", "200", 0, "no rule"},
		"wrong content type":  {calls(methodJoin, hpack.HeaderField{Name: "content-type", Value: "application/json"}), "3", "415", 0, ""},
		"GET":                 {calls(methodJoin, hpack.HeaderField{Name: ":method", Value: "GET"}), "13", "405", 0, ""},
		"large headers":       {calls(methodJoin, repeated(hpack.HeaderField{Name: "x", Value: strings.Repeat("y", 1000)}, 17)...), "", "", http2.ErrCodeFrameSize, ""},
		"compressed":          {calls(methodFacts, hpack.HeaderField{Name: "grpc-encoding", Value: "gzip"}), "12", "200", 0, ""},
		"no message, unary":   {calls(methodFacts), "13", "200", 0, "receive a message"},
		"two messages, unary": {func(t *testing.T, w *wire) answer {
			id := begin(t, w, methodFacts)
			write(t, w, id, true, append(message(0, nil), message(0, nil)...))
			return w.answer(t, id)
		}, "13", "200", 0, "receive a message"},
		"length of 4 GiB": {func(t *testing.T, w *wire) answer {
			id := begin(t, w, methodFacts)
			write(t, w, id, false, message(0xffffffff, nil))
			return w.answer(t, id)
		}, "8", "200", 0, "larger than max"},
		"no protobuf": {func(t *testing.T, w *wire) answer {
			id := begin(t, w, methodInit)
			write(t, w, id, true, message(3, []byte("\xff\xff\xff")))
			return w.answer(t, id)
		}, "13", "200", 0, "receive a message"},
		"body that never comes": {func(t *testing.T, w *wire) answer {
			id := begin(t, w, methodFacts)
			write(t, w, id, false, message(1000, []byte("x")))
			return w.answer(t, id)
		}, "4", "200", 0, "not finished within"},
		"refused before its body": {func(t *testing.T, w *wire) answer { return w.answer(t, begin(t, w, methodWatch)) }, "16", "200", 0, "wrong secret"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, ServerOptions{
				Timeout: map[string]time.Duration{methodFacts: 200 * time.Millisecond},
				Authorize: map[string]func(context.Context, Peer) error{
					methodJoin: anybody, methodFacts: anybody, methodInit: anybody, "/ruled.But/Missing": anybody,
					methodWatch: deny(codes.Unauthenticated, "wrong secret", ""),
				},
			}, AnyKey, joiner{join: endless}, initer{init: func(context.Context, *initv1.InitRequest) (*initv1.InitReply, error) { return nil, nil }})
			a := c.do(t, speak(t, s))
			if a.fields["grpc-status"] != c.status || a.fields[":status"] != c.http || a.reset != c.reset {
				t.Errorf("answer %v, want gRPC %s, HTTP %s, reset %v", a, c.status, c.http, c.reset)
			}
			if c.reason == "" {
				return
			}
			r := s.wait(t, c.reason)
			// gRPC answers in its own words where it cannot read a name or a message.
			own := c.reason == "no method's name" || c.reason == "receive a message" || c.reason == "larger than max"
			if !own && !strings.Contains(a.fields["grpc-message"], r.ID) {
				t.Errorf("the peer learns %q, without the id %s", a.fields["grpc-message"], r.ID)
			}
			if len(r.Method) > 200 {
				t.Errorf("audit keeps %d bytes of a name", len(r.Method))
			}
		})
	}
}

func calls(path string, fields ...hpack.HeaderField) func(*testing.T, *wire) answer {
	return func(t *testing.T, w *wire) answer {
		id, err := w.call(path, true, fields...)
		if err != nil {
			t.Fatal(err)
		}
		return w.answer(t, id)
	}
}

func begin(t *testing.T, w *wire, method string) uint32 {
	t.Helper()
	id, err := w.call(method, false)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func write(t *testing.T, w *wire, id uint32, end bool, b []byte) {
	t.Helper()
	if err := w.WriteData(id, end, b); err != nil {
		t.Fatal(err)
	}
}

// Calls that are taken back at once neither pile up nor keep a good one out.
func TestRapidReset(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	running, most := 0, 0
	s := open(t, ServerOptions{Limits: Limits{Calls: Rate{1e6, 1e6}}}, AnyKey, joiner{join: func(stream joinStream) error {
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
	w := speak(t, s)
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
		t.Errorf("%d handlers ran at the same time on one connection", most)
	}
}

// More calls than one connection may have are refused, and their refusal costs no handler.
func TestTooManyStreams(t *testing.T) {
	t.Parallel()
	s := open(t, ServerOptions{}, AnyKey, joiner{join: endless}, initer{})
	w := speak(t, s)
	var last uint32
	for range 17 {
		last = begin(t, w, methodJoin)
	}
	if a := w.answer(t, last); a.reset != http2.ErrCodeRefusedStream {
		t.Errorf("the 17th call: %+v", a)
	}
}

// A call that was refused leaves no timer behind, however long its peer would have waited.
func TestRefusedCallsLeaveNothing(t *testing.T) {
	t.Parallel()
	s := open(t, ServerOptions{Limits: Limits{Calls: Rate{0.001, 1}}}, AnyKey, joiner{}, initer{})
	w := speak(t, s)
	for _, path := range []string{"x", "/x/y", methodFacts} {
		id, err := w.call(path, true, hpack.HeaderField{Name: "grpc-timeout", Value: "99999999H"})
		if err != nil {
			t.Fatal(err)
		}
		if a := w.answer(t, id); a.fields["grpc-status"] == "0" {
			t.Errorf("%q was answered: %v", path, a)
		}
	}
	s.wait(t, "no method's name")
	s.wait(t, "calls a second")
}
