// SPDX-License-Identifier: Apache-2.0

// Package rpc provides the TLS 1.3 and gRPC servers and clients that Slipway's network services are built on. A server accepts
// connections from unauthenticated clients: it limits how many connections and calls a client may make, how long they may last
// and how large they may be. It refuses every method that has no authorization rule, and it tells a refused client nothing but an
// id. The package does not know what the services say to each other, and it stores no keys: callers pass them in.
//
// Read [ServerOptions], [Refusal] and [ClientOptions] first.
//
//	s := rpc.NewServer(rpc.ServerOptions{
//		TLS:       rpc.ServerTLS(certificate, rpc.AnyKey),
//		Authorize: map[string]func(context.Context, rpc.Peer) error{"/slipway.join.v1.Join/Join": anybody, "/slipway.join.v1.Join/Sync": nodes},
//		Timeout:   map[string]time.Duration{"/slipway.join.v1.Join/Sync": rpc.NoTimeout},
//		Audit:     audit,
//	})
//	joinv1.RegisterJoinServer(s, service)
//	err := s.Serve(listener)
//
// A connection passes these stages. Each stage may refuse it, and each refusal is reported to Audit:
//
//	Accept → connection limits → TLS 1.3 (10 s, 16 KiB) → HTTP/2 → call rate → rule of the method → message → handler
package rpc

import (
	"context"
	"crypto"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/slipway-project/slipway/internal/core/pin"
)

const (
	exporterLabel  = "EXPORTER-slipway-join"
	exporterLength = 32
	alpn           = "h2"
)

// Peer identifies the caller. The handshake proves the key; everything else in the certificate is ignored.
type Peer struct {
	Addr   netip.AddrPort
	Key    pin.Pin          // of its public key; "" without a client certificate
	Public crypto.PublicKey // nil without a client certificate; otherwise *ecdsa.PublicKey (P-256) or ed25519.PublicKey
}

// authInfo is the result of a handshake on the server's side.
type authInfo struct {
	credentials.CommonAuthInfo
	peer  Peer
	state tls.ConnectionState
	conn  *conn
}

// AuthType implements credentials.AuthInfo.
func (authInfo) AuthType() string { return "tls" }

var errForeignCall = errors.New("the call was not received by a server of package rpc")

// PeerFrom returns the caller of a call to a [Server]; ctx is the context of the call.
func PeerFrom(ctx context.Context) (Peer, error) {
	info, err := authInfoFrom(ctx)
	return info.peer, err
}

func authInfoFrom(ctx context.Context) (authInfo, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return authInfo{}, errForeignCall
	}
	info, ok := p.AuthInfo.(authInfo)
	if !ok {
		return authInfo{}, errForeignCall
	}
	return info, nil
}

// Exporter returns 32 bytes of keying material that only the two ends of the TLS connection know. A server passes the context of
// the call; a client passes the stream's own context, not the one that the stream was opened with.
func Exporter(ctx context.Context) ([]byte, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, errors.New("export keying material: the context has no peer (a client must pass the stream's own context)")
	}
	return ExporterOf(p)
}

// ExporterOf is like [Exporter] for a caller that already has the peer, for example from the call option grpc.Peer.
func ExporterOf(p *peer.Peer) ([]byte, error) {
	var state tls.ConnectionState
	switch info := p.AuthInfo.(type) {
	case authInfo:
		state = info.state
	case credentials.TLSInfo:
		state = info.State
	default:
		return nil, errors.New("export keying material: the connection is not TLS")
	}
	if state.Version != tls.VersionTLS13 {
		return nil, errors.New("export keying material: the connection is not TLS 1.3")
	}
	b, err := state.ExportKeyingMaterial(exporterLabel, nil, exporterLength)
	if err != nil {
		return nil, fmt.Errorf("export keying material: %w", err)
	}
	return b, nil
}
