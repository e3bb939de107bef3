// SPDX-License-Identifier: Apache-2.0

package joinserver_test

import (
	"crypto/ecdsa"
	"crypto/x509"
	"io"
	"net/netip"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/control/joinserver"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/rpc"
)

// channel is a Channel without TLS.
type channel struct {
	key  *ecdsa.PublicKey
	pin  pin.Pin
	from netip.AddrPort
}

func (c channel) Peer() rpc.Peer            { return rpc.Peer{Addr: c.from, Key: c.pin, Public: c.key} }
func (c channel) Exporter() ([]byte, error) { return make([]byte, 32), nil }

// tape plays messages and keeps the replies.
type tape[Req, Rep any] struct {
	messages []Req
	replies  []Rep
}

func (s *tape[Req, Rep]) Send(m Rep) error { s.replies = append(s.replies, m); return nil }

func (s *tape[Req, Rep]) Recv() (m Req, err error) {
	if len(s.messages) == 0 {
		return m, io.EOF
	}
	m, s.messages = s.messages[0], s.messages[1:]
	return m, nil
}

func newChannel(f *testing.F) channel {
	key := certtest.Key(f)
	return channel{&key.PublicKey, pinOf(f, key.Public()), netip.MustParseAddrPort("127.0.0.66:1000")}
}

// FuzzJoin plays three messages of a stranger. Whatever they are: no panic, no grant, and each line of the audit is one line.
func FuzzJoin(f *testing.F) {
	w := newWorld(f, rpc.Limits{})
	ch := newChannel(f)
	add := func(ms ...*joinv1.JoinRequest) {
		var text [3][]byte
		for i, m := range ms {
			text[i], _ = proto.Marshal(m)
		}
		f.Add(text[0], text[1], text[2])
	}
	hello := &joinv1.JoinRequest{Message: &joinv1.JoinRequest_Hello{Hello: &joinv1.Hello{
		Protocol: 1, Cluster: w.id, Verifier: "token", Node: "n", SealKey: make([]byte, 32), Facts: []byte(`{"address":"127.0.0.66"}`),
	}}}
	proof := &joinv1.JoinRequest{Message: &joinv1.JoinRequest_Proof{Proof: &joinv1.Proof{Signature: make([]byte, 70), Evidence: []byte("slipway.a.b")}}}
	keys := &joinv1.JoinRequest{Message: &joinv1.JoinRequest_Keys{Keys: &joinv1.Keys{Requests: map[string][]byte{"kubelet": csr(f, x509.CertificateRequest{}, certtest.Key(f))}}}}
	add(hello, proof, keys)
	add(proof, hello)
	add()
	f.Fuzz(func(t *testing.T, a, b, c []byte) {
		stream := &tape[*joinv1.JoinRequest, *joinv1.JoinReply]{}
		for _, text := range [][]byte{a, b, c} {
			m := &joinv1.JoinRequest{}
			if proto.Unmarshal(text, m) != nil {
				break
			}
			stream.messages = append(stream.messages, m)
		}
		before := len(w.audit())
		if err := w.server.Join(t.Context(), ch, stream); err == nil {
			t.Error("the join ended well")
		}
		for _, reply := range stream.replies {
			if reply.GetChallenge() == nil {
				t.Errorf("the stranger got %v", reply)
			}
		}
		checkLines(t, w, before)
	})
}

// FuzzSync plays two messages of a node on its stream: nothing comes of them but the roster.
func FuzzSync(f *testing.F) {
	w := newWorld(f, rpc.Limits{})
	m := worker(w)
	ch := channel{&m.key.PublicKey, m.pin(), netip.AddrPortFrom(m.address, 1000)}
	hello, _ := proto.Marshal(&joinv1.SyncRequest{Message: &joinv1.SyncRequest_Hello{Hello: &joinv1.SyncHello{Cluster: w.id, Node: "dev-worker-0"}}})
	f.Add(hello, []byte{})
	f.Fuzz(func(t *testing.T, a, b []byte) {
		stream := &tape[*joinv1.SyncRequest, *joinv1.SyncReply]{}
		for _, text := range [][]byte{a, b} {
			m := &joinv1.SyncRequest{}
			if proto.Unmarshal(text, m) != nil {
				break
			}
			stream.messages = append(stream.messages, m)
		}
		before := len(w.audit())
		err := w.server.Sync(t.Context(), ch, stream)
		if err == nil || slices.ContainsFunc(stream.replies, func(r *joinv1.SyncReply) bool { return len(r.GetRoster()) == 0 }) {
			t.Errorf("it ended with %v after %v", err, stream.replies)
		}
		checkLines(t, w, before)
	})
}

func checkLines(t *testing.T, w *world, before int) {
	t.Helper()
	for _, e := range w.audit()[before:] {
		if line := e.String(); !oneLine.MatchString(line) || len(line) > 2048 || e.Reason == joinserver.Granted || e.Reason == joinserver.Certified {
			t.Errorf("audit: %.300q", line)
		}
	}
}
