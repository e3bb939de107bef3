// SPDX-License-Identifier: Apache-2.0

package joinclient

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"google.golang.org/grpc"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/rpc"
)

// Dialer connects to a join service and checks that it belongs to the cluster. If it does not, the Dialer or the first call on the
// connection fails with an *rpc.Untrusted. A Dialer may return before anything was sent.
type Dialer func(ctx context.Context, to netip.AddrPort) (Conn, error)

// Conn is a connection to a join service. A stream ends with its context, and with Close.
type Conn interface {
	Join(ctx context.Context) (JoinStream, error)
	Sync(ctx context.Context) (SyncStream, error)
	Close() error
}

// JoinStream is the stream of one join.
type JoinStream interface {
	Send(*joinv1.JoinRequest) error
	Recv() (*joinv1.JoinReply, error)
	CloseSend() error
	// Exporter returns a secret that only the two ends of the connection share.
	Exporter() ([]byte, error)
}

// SyncStream is the stream of a node.
type SyncStream interface {
	Send(*joinv1.SyncRequest) error
	Recv() (*joinv1.SyncReply, error)
}

// TLS returns the Dialer for real networks: TLS 1.3 with the machine's key, from the machine's own address, so that the service sees
// the address that the machine reports. The server must present a chain that ends in the CA with this pin.
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

// Clock returns the time of a join service's clock. The server must present a chain that ends in the pinned CA; the validity
// periods of its certificates are not checked.
type Clock func(ctx context.Context, to netip.AddrPort) (time.Time, error)

// TLSClock returns the Clock for real networks.
func TLSClock(ca pin.Pin, key *ecdsa.PrivateKey, from func() netip.Addr) Clock {
	return func(ctx context.Context, to netip.AddrPort) (time.Time, error) {
		conn, err := dialTLS(to, rpc.ClientOptions{CAPin: ca, AnyTime: true}, key, from, time.Now)
		if err != nil {
			return time.Time{}, err
		}
		defer conn.Close() //nolint:errcheck // the reply has been read
		reply, err := joinv1.NewJoinClient(conn).Clock(ctx, &joinv1.ClockRequest{})
		if err != nil {
			return time.Time{}, err
		}
		return time.Unix(0, reply.GetUnixNano()), nil
	}
}

const (
	clockTime  = 3 * time.Second // limit for asking a server for its time
	clockPause = 2 * time.Second // until the clocks are compared again
)

// clockError means that a certificate is not valid now because the clocks of this machine and of the server differ.
type clockError struct {
	at     netip.AddrPort
	here   time.Time
	there  time.Time // zero: the server did not tell its time
	reason error
}

func (e *clockError) Unwrap() error { return e.reason }

func (e *clockError) Error() string {
	if e.there.IsZero() {
		return message(e.reason)
	}
	return fmt.Sprintf("the clock of this machine says %s, that of %s says %s: %s", timestamp(e.here), e.at, timestamp(e.there), difference(e.here, e.there))
}

func timestamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// difference describes by how much and in which direction two clocks differ, for people.
func difference(here, there time.Time) string {
	by, direction := here.Sub(there), "ahead of"
	if by < 0 {
		by, direction = -by, "behind"
	}
	text := by.Round(time.Second).String()
	if day := 24 * time.Hour; by >= 2*day {
		text = fmt.Sprintf("%d days", by.Round(day)/day)
	}
	return fmt.Sprintf("this machine is %s %s it", text, direction)
}

// notValidNow is a certificate for this machine that is not valid by this machine's clock.
type notValidNow struct{ text string }

func (e *notValidNow) Error() string { return e.text }

// explainClock turns an error about the validity period of a certificate into a *clockError. For that it asks the server for its
// time. It returns every other error unchanged.
func explainClock(ctx context.Context, at netip.AddrPort, err error, now func() time.Time, ask Clock) error {
	if _, is := errors.AsType[*notValidNow](err); !is && !rpc.IsWrongClock(err) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, clockTime)
	defer cancel()
	e := &clockError{at: at, here: now(), reason: err}
	if there, err := ask(ctx, at); err == nil {
		e.here, e.there = now(), there
	}
	return e
}

func clockStatus(detail string) Status {
	return Status{
		For: wait.For{
			What: "clocks that agree",
			Who:  "the operator: set the clock of this machine, or of the control plane if that one is wrong (chrony, systemd-timesyncd, date); the agent then continues",
		},
		Detail: detail,
	}
}
