// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"io"
	"net"
	"testing"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
	joinv1 "github.com/slipway-project/slipway/api/join/v1"
)

// unlimited lets one source make any number of connections and calls.
func unlimited() Limits {
	return Limits{Connections: Rate{1e9, 1e9}, ConnectionsAll: Rate{1e9, 1e9}, Calls: Rate{1e9, 1e9}, PerSource: 1 << 20, Total: 1 << 20}
}

// BenchmarkBare is the baseline: a mutual TLS 1.3 handshake, one signature and its verification, two small messages, no gRPC.
func BenchmarkBare(b *testing.B) {
	key, cert := identity(b)
	config := ServerTLS(func() (*tls.Certificate, error) { return cert, nil }, AnyKey)
	var lc net.ListenConfig
	l, err := lc.Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				conn := tls.Server(raw, config)
				defer func() { _ = conn.Close() }()
				_, _ = io.CopyN(conn, conn, 1)
			}()
		}
	}()
	client := ClientTLS(ClientOptions{Pin: pinOf(b, key), Certificate: cert, ServerName: "127.0.0.1"})
	digest := sha256.Sum256([]byte("challenge"))
	b.ReportAllocs()
	for b.Loop() {
		conn, err := tls.Dial("tcp", l.Addr().String(), client)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := conn.Write([]byte{1}); err != nil {
			b.Fatal(err)
		}
		signAndVerify(b, key, digest[:])
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			b.Fatal(err)
		}
		_ = conn.Close()
	}
}

func signAndVerify(b *testing.B, key *ecdsa.PrivateKey, digest []byte) {
	b.Helper()
	signature, err := ecdsa.SignASN1(rand.Reader, key, digest)
	if err != nil {
		b.Fatal(err)
	}
	if !ecdsa.VerifyASN1(&key.PublicKey, digest, signature) {
		b.Fatal("wrong signature")
	}
}

// BenchmarkConnectAndCall measures the fixed cost of a join: connection, handshake, a stream with four messages, the exporter on
// both sides, one signature and its verification.
func BenchmarkConnectAndCall(b *testing.B) {
	s := startServer(b, ServerOptions{Limits: unlimited()}, AnyKey, joiner{join: func(stream joinStream) error {
		if _, err := Exporter(stream.Context()); err != nil {
			return err
		}
		for range 2 {
			if _, err := stream.Recv(); err != nil {
				return err
			}
			if err := stream.Send(&joinv1.JoinReply{}); err != nil {
				return err
			}
		}
		return nil
	}}, initer{})
	key, cert := identity(b)
	digest := sha256.Sum256([]byte("challenge"))
	b.ReportAllocs()
	for b.Loop() {
		conn, err := Dial(s.addr, ClientOptions{Pin: s.pin, Certificate: cert})
		if err != nil {
			b.Fatal(err)
		}
		stream, err := joinv1.NewJoinClient(conn).Join(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		for range 2 {
			if err := stream.Send(hello(32)); err != nil {
				b.Fatal(err)
			}
			if _, err := stream.Recv(); err != nil {
				b.Fatal(err)
			}
		}
		if _, err := Exporter(stream.Context()); err != nil {
			b.Fatal(err)
		}
		signAndVerify(b, key, digest[:])
		_ = conn.Close()
	}
}

// BenchmarkCall measures a call on an open connection.
func BenchmarkCall(b *testing.B) {
	s := startServer(b, ServerOptions{Limits: unlimited()}, AnyKey, joiner{}, initer{})
	client := initv1.NewInitClient(s.dial(b))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.Facts(b.Context(), &initv1.FactsRequest{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRefusedCall measures a call to a method without a rule.
func BenchmarkRefusedCall(b *testing.B) {
	s := startServer(b, ServerOptions{Limits: unlimited(), Authorize: both(allowAll)}, AnyKey, joiner{}, initer{})
	client := initv1.NewInitClient(s.dial(b))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.Facts(b.Context(), &initv1.FactsRequest{}); err == nil {
			b.Fatal("the call was not refused")
		}
	}
}
