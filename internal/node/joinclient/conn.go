// SPDX-License-Identifier: Apache-2.0

package joinclient

import (
	"context"
	"crypto/ecdsa"
	"net"
	"net/netip"
	"time"

	"google.golang.org/grpc"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/rpc"
)

// Dialer connects to a join service and checks that it is one of the cluster: an error of a wrong one is a *rpc.Untrusted, or
// comes as such from the first call. It may answer before anything has been sent.
type Dialer func(ctx context.Context, to netip.AddrPort) (Conn, error)

// Conn is a connection to a join service. Streams end with their contexts, and with Close.
type Conn interface {
	Join(ctx context.Context) (JoinStream, error)
	Sync(ctx context.Context) (SyncStream, error)
	Close() error
}

// JoinStream is the stream of one join, and the secret that only the two ends of its connection share.
type JoinStream interface {
	Send(*joinv1.JoinRequest) error
	Recv() (*joinv1.JoinReply, error)
	CloseSend() error
	Exporter() ([]byte, error)
}

// SyncStream is the stream of a node.
type SyncStream interface {
	Send(*joinv1.SyncRequest) error
	Recv() (*joinv1.SyncReply, error)
}

// TLS is the Dialer for real networks: TLS 1.3 with the machine's key, from the machine's own address, so that the service sees
// the address that the machine tells it. The server must show a chain that ends in the CA with this pin.
func TLS(ca pin.Pin, key *ecdsa.PrivateKey, from func() netip.Addr, now func() time.Time) Dialer {
	return func(_ context.Context, to netip.AddrPort) (Conn, error) {
		conn, err := dialTLS(to, rpc.ClientOptions{CAPin: ca}, key, from, now)
		if err != nil {
			return nil, err
		}
		return tlsConn{conn, joinv1.NewJoinClient(conn)}, nil
	}
}

func dialTLS(to netip.AddrPort, o rpc.ClientOptions, key *ecdsa.PrivateKey, from func() netip.Addr, now func() time.Time) (*grpc.ClientConn, error) {
	certificate, err := rpc.SelfSigned(key, "slipway machine", now())
	if err != nil {
		return nil, err
	}
	o.Certificate, o.Now = certificate, now
	o.Dialer = func(ctx context.Context, address string) (net.Conn, error) {
		var d net.Dialer
		if a := from(); a.IsValid() {
			d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(a, 0))
		}
		return d.DialContext(ctx, "tcp", address)
	}
	return rpc.Dial(to.String(), o)
}

type tlsConn struct {
	conn   *grpc.ClientConn
	client joinv1.JoinClient
}

func (c tlsConn) Close() error { return c.conn.Close() }

func (c tlsConn) Join(ctx context.Context) (JoinStream, error) {
	stream, err := c.client.Join(ctx)
	if err != nil {
		return nil, err
	}
	return tlsStream{stream}, nil
}

func (c tlsConn) Sync(ctx context.Context) (SyncStream, error) { return c.client.Sync(ctx) }

type tlsStream struct{ joinv1.Join_JoinClient }

func (s tlsStream) Exporter() ([]byte, error) { return rpc.Exporter(s.Context()) }
