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

// dnsServer answers on loopback with what answer makes of each question; nil is silence.
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
		want   string // "" for an answer
	}{
		"an address": {func(t *testing.T, q dnsmessage.Message) []byte {
			t.Helper()
			if len(q.Questions) != 1 || q.Questions[0].Name.String() != apiName || q.Questions[0].Type != dnsmessage.TypeA {
				t.Errorf("asked for %v", q.Questions)
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
		"no DNS":        {func(*testing.T, dnsmessage.Message) []byte { return []byte("hello") }, " answers what is no DNS"},
		"silence":       {func(*testing.T, dnsmessage.Message) []byte { return nil }, " is silent"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := dnsServer(t, func(q dnsmessage.Message) []byte { return tc.answer(t, q) })
			begun := time.Now()
			err := ResolveUDP(t.Context(), at, apiName)
			if took := time.Since(begun); took > 3*time.Second {
				t.Errorf("it took %s", took)
			}
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want != "" && (err == nil || !strings.HasPrefix(err.Error(), at.String()+tc.want)):
				t.Errorf("error %v, want %s%s", err, at, tc.want)
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
	if err := ResolveUDP(t.Context(), at, apiName); err == nil || err.Error() != at.String()+" refuses" {
		t.Errorf("closed port: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := ResolveUDP(ctx, at, apiName); err == nil {
		t.Error("an answer after the end")
	}
	if err := ResolveUDP(t.Context(), at, strings.Repeat("x", 300)); err == nil || !strings.HasPrefix(err.Error(), "ask for ") {
		t.Errorf("a name that is none: %v", err)
	}
}
