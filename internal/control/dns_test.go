// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const apiName = "kubernetes.default.svc.cluster.local."

// dnsServer runs a DNS server on loopback. It replies with the result of answer; nil means no reply.
func dnsServer(t *testing.T, answer func(q dnsmessage.Message) []byte) netip.AddrPort {
	t.Helper()
	var lc net.ListenConfig
	conn, err := lc.ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var q dnsmessage.Message
			if err := q.Unpack(buf[:n]); err != nil {
				t.Error(err)
			}
			if a := answer(q); a != nil {
				_, _ = conn.WriteTo(a, from)
			}
		}
	}()
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
	return netip.MustParseAddrPort(conn.LocalAddr().String())
}

func pack(t *testing.T, m dnsmessage.Message) []byte {
	t.Helper()
	m.Response = true
	data, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestResolveUDP(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answer func(t *testing.T, q dnsmessage.Message) []byte
		want   string // "" for no error
	}{
		"an address": {func(t *testing.T, q dnsmessage.Message) []byte {
			t.Helper()
			if len(q.Questions) != 1 || q.Questions[0].Name.String() != apiName || q.Questions[0].Type != dnsmessage.TypeA {
				t.Errorf("got questions %v", q.Questions)
			}
			q.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Questions[0].Name, Class: dnsmessage.ClassINET, TTL: 5},
				Body:   &dnsmessage.AResource{A: [4]byte{10, 96, 0, 1}},
			}}
			return pack(t, q)
		}, ""},
		"SERVFAIL": {func(t *testing.T, q dnsmessage.Message) []byte {
			t.Helper()
			q.RCode = dnsmessage.RCodeServerFailure
			return pack(t, q)
		}, " answers RCodeServerFailure"},
		"no such name": {func(t *testing.T, q dnsmessage.Message) []byte {
			t.Helper()
			q.RCode = dnsmessage.RCodeNameError
			return pack(t, q)
		}, " answers RCodeNameError"},
		"nothing in it": {func(t *testing.T, q dnsmessage.Message) []byte { t.Helper(); return pack(t, q) }, " answers without an address"},
		"no DNS":        {func(*testing.T, dnsmessage.Message) []byte { return []byte("hello") }, " sends an invalid answer"},
		"silence":       {func(*testing.T, dnsmessage.Message) []byte { return nil }, " does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := dnsServer(t, func(q dnsmessage.Message) []byte { return tc.answer(t, q) })
			begun := time.Now()
			err := ResolveUDP(t.Context(), at, apiName)
			if took := time.Since(begun); took > 3*time.Second {
				t.Errorf("took %s, want at most 3s", took)
			}
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want != "" && (err == nil || !strings.HasPrefix(err.Error(), at.String()+tc.want)):
				t.Errorf("got error %v, want %s%s", err, at, tc.want)
			}
		})
	}
}

func TestResolveRefusedAndCancelled(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	conn, err := lc.ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(conn.LocalAddr().String())
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := ResolveUDP(t.Context(), at, apiName); err == nil || err.Error() != at.String()+" refuses the query" {
		t.Errorf("closed port: got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := ResolveUDP(ctx, at, apiName); err == nil {
		t.Error("got an answer after the context ended")
	}
	if err := ResolveUDP(t.Context(), at, strings.Repeat("x", 300)); err == nil || !strings.HasPrefix(err.Error(), "ask for ") {
		t.Errorf("an invalid name: got %v", err)
	}
}
