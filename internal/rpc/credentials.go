// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	"github.com/slipway-project/slipway/internal/core/roster"
)

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" // RFC 9113, 3.4: what a client says first

// serverCredentials makes the handshakes of a Server. gRPC's own would not tell anybody why one failed.
type serverCredentials struct{ config *tls.Config }

var _ credentials.TransportCredentials = serverCredentials{}

// ServerHandshake is called by gRPC for each connection, under the deadline of Limits.Handshake.
func (s serverCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, ok := raw.(*conn)
	if !ok {
		raw.Close()
		return nil, nil, errors.New("shake hands: the connection did not come through this server's listener")
	}
	secured := tls.Server(c, s.config)
	if err := secured.HandshakeContext(context.Background()); err != nil { // it has a deadline; a context would cost a goroutine
		return nil, nil, c.failed("TLS handshake", err)
	}
	first := make([]byte, len(preface))
	if _, err := io.ReadFull(secured, first); err != nil {
		return nil, nil, c.failed("HTTP/2 preface", err)
	}
	if string(first) != preface {
		return nil, nil, c.failed("HTTP/2 preface", fmt.Errorf("it is %q", first))
	}
	c.handshaken()
	state := secured.ConnectionState()
	info := authInfo{
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		peer:           Peer{Addr: c.addr}, state: state, conn: c,
	}
	if len(state.PeerCertificates) > 0 {
		leaf := state.PeerCertificates[0]
		info.peer.Key, info.peer.Public = roster.Pin(leaf.RawSubjectPublicKeyInfo), leaf.PublicKey
	}
	return &replayed{Conn: secured, first: first}, info, nil
}

// failed closes the connection and says why. A client that only went away is no news.
func (c *conn) failed(stage string, err error) error {
	_ = c.Close()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.refuse(codes.DeadlineExceeded, fmt.Sprintf("%s: not finished within %s", stage, c.gate.limits.Handshake))
	case errors.Is(err, net.ErrClosed): // we have stopped
	case errors.Is(err, io.EOF):
		c.refuse(codes.Canceled, stage+": the client went away")
	default:
		c.refuse(codes.Unauthenticated, fmt.Sprintf("%s: %v", stage, err))
	}
	return fmt.Errorf("%s: %w", stage, err)
}

// replayed gives back what was read to look at it.
type replayed struct {
	net.Conn
	first []byte
}

func (r *replayed) Read(b []byte) (int, error) {
	if len(r.first) == 0 {
		return r.Conn.Read(b)
	}
	n := copy(b, r.first)
	r.first = r.first[n:]
	return n, nil
}

// ClientHandshake is not for servers.
func (s serverCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("shake hands: these are a server's credentials")
}

// Info is asked for by channelz only.
func (s serverCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone copies nothing: the configuration is never changed.
func (s serverCredentials) Clone() credentials.TransportCredentials { return s }

// OverrideServerName is for clients.
func (s serverCredentials) OverrideServerName(string) error { return nil }
