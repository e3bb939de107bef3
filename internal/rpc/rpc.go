// SPDX-License-Identifier: Apache-2.0

// Package rpc is the ground that Slipway's network services stand on: TLS 1.3 and gRPC servers and clients that expect
// strangers. It decides who may connect how often, how long and how much, that nobody may call anything without a rule, and
// what strangers learn (nothing but an id). It never knows what the services say to each other, and it holds no keys: it
// is given them.
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
// A connection on its way:
//
//	Accept ─► slots, rates ─► TLS 1.3 (10 s, 16 KiB) ─► HTTP/2 ─► rate of calls ─► rule of the method ─► message ─► handler
//	   └───────────┴─────────────────┴────────────────────┴─────────────┴──────────────┴───────────────┴──────► Audit
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
)

const (
	exporterLabel  = "EXPORTER-slipway-join"
	exporterLength = 32
	alpn           = "h2"
)

// Peer is who calls. The key is proven by the handshake; everything else in the certificate is ignored.
type Peer struct {
	Addr   netip.AddrPort
	Key    string           // roster.Pin of its public key; "" without a client certificate
	Public crypto.PublicKey // nil without a client certificate; otherwise *ecdsa.PublicKey (P-256) or ed25519.PublicKey
}

// authInfo is what a handshake on the server's side has found out.
type authInfo struct {
	credentials.CommonAuthInfo
	peer  Peer
	state tls.ConnectionState
	conn  *conn
}

// AuthType is gRPC's word for the kind of this value.
func (authInfo) AuthType() string { return "tls" }

var errNotOurs = errors.New("the call did not come through a server of this package")

// PeerFrom is who makes the call whose context this is. Only for calls to a [Server].
func PeerFrom(ctx context.Context) (Peer, error) {
	info, err := serverSide(ctx)
	return info.peer, err
}

func serverSide(ctx context.Context) (authInfo, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return authInfo{}, errNotOurs
	}
	info, ok := p.AuthInfo.(authInfo)
	if !ok {
		return authInfo{}, errNotOurs
	}
	return info, nil
}

// Exporter is 32 bytes that only the two ends of this TLS connection know, on either side: on the server's with the context
// of the call, on the client's with the stream's own context (not the one it was opened with).
func Exporter(ctx context.Context) ([]byte, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, errors.New("export keying material: the context belongs to no call (a client asks the stream's own context)")
	}
	return ExporterOf(p)
}

// ExporterOf is Exporter for who has the peer already, such as by the call option grpc.Peer.
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
